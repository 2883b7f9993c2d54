package dev.chagres.checkpoint;

import dev.chagres.Stream;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.RecipeDifferences;
import dev.chagres.io.Safetensors;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.optim.Optimizer;
import dev.chagres.optim.StateVector;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.StateOwner;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.sharding.Strategy;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * What a program saves to go on exactly, or its weights alone, with the names, types and shapes that they have on one rank.
 *
 * <p>One door for every way to train: one rank, the ranks of a {@link Strategy}, ranks that split layers, stages of a pipeline. The file is
 * the same, byte for byte, whatever ranks have written it, but for states of eight bits: see {@link dev.chagres.parameter.CodedState}. Any number
 * of ranks loads it, under any strategy.
 *
 * <p>With an {@link #optimizer} it is the state that is needed to go on exactly. Without one it is the weights, to begin with weights that were
 * trained before, or to save the present ones. These can be loaded from a file of weights, and from the file of a whole run, whose entries of
 * optimizer and recipe and whose numbers are ignored; types may differ as {@link Parameters#weightState} says.
 *
 * <p>Of several ranks each calls the same methods, with the same parts in the same order, and waits. Rank 0 reads and writes the file; what
 * others name is not used. Tensors are sent one after another, in pieces of at most 16 MB, so that besides a piece no device and no host
 * needs memory for more of the model than it keeps.
 *
 * {@snippet file="dev/chagres/checkpoint/RunStateTest.java" region="saved"}
 *
 * <p>Threading: immutable; the methods with a file: the device's thread.
 *
 * <p>Source: PyTorch's {@code get_model_state_dict} and {@code set_model_state_dict} with full tensors from rank 0.
 */
public final class RunState {
    /** Pinned memory of a save that waits. */
    private static final long WAITING_BYTES = CheckpointFolder.LEAST_PINNED_BYTES;

    private final Parameters parameters;
    private final @Nullable Strategy strategy;
    private final @Nullable Mesh mesh;
    private final @Nullable PipelineParallel pipeline;
    private final @Nullable Optimizer optimizer;
    private final List<StateOwner> others;
    /** Null where weights keep their names. */
    private final @Nullable ModelFiles model;

    private RunState(
            Parameters parameters,
            @Nullable Strategy strategy,
            @Nullable Mesh mesh,
            @Nullable PipelineParallel pipeline,
            @Nullable Optimizer optimizer,
            List<StateOwner> others,
            @Nullable ModelFiles model) {
        this.parameters = parameters;
        this.strategy = strategy;
        this.mesh = mesh;
        this.pipeline = pipeline;
        this.optimizer = optimizer;
        this.others = others;
        this.model = model;
    }

    /** Returns the weights of a rank that trains alone. */
    public static RunState of(Parameters parameters) {
        return new RunState(Checks.given("parameters", parameters), null, null, null, null, List.of(), null);
    }

    /** Returns the weights of ranks that train together. */
    public static RunState of(Strategy strategy) {
        return new RunState(
                Checks.given("strategy", strategy).parameters(),
                strategy,
                strategy.mesh(),
                null,
                null,
                List.of(),
                null);
    }

    /**
     * Returns the same of ranks that have a part of each layer, whose mesh the strategy does not know.
     *
     * @param newMesh of all ranks, along whose dimension {@link MeshDimension#TENSOR} the layers are split
     * @throws IllegalArgumentException when it is not the one whose ranks split the layers, or not that of the strategy
     * @throws IllegalStateException when there is no strategy
     */
    public RunState over(Mesh newMesh) {
        Checks.given("mesh", newMesh);
        TensorParallel ranks = parameters.tensorParallel();
        if (newMesh.size(MeshDimension.TENSOR) != ranks.size()
                || newMesh.coordinate(MeshDimension.TENSOR) != ranks.rank()) {
            throw new IllegalArgumentException("mesh: expected that of " + ranks + ", got " + newMesh);
        }
        ensureStrategy("over").checkMesh(newMesh);
        return new RunState(parameters, strategy, newMesh, pipeline, optimizer, others, model);
    }

    /**
     * Returns the same of ranks that have stages of a pipeline.
     *
     * @param newPipeline of the same parameters
     * @throws IllegalArgumentException when it is that of other parameters, or the strategy has another mesh
     * @throws IllegalStateException when there is no strategy, or the pipeline is closed
     */
    public RunState stages(PipelineParallel newPipeline) {
        Checks.given("pipeline", newPipeline).ensureOpen();
        if (newPipeline.parameters() != parameters) {
            throw new IllegalArgumentException(
                    "pipeline: expected that of the strategy's parameters, got that of others: " + newPipeline);
        }
        ensureStrategy("stages").checkMesh(newPipeline.mesh());
        return new RunState(parameters, strategy, newPipeline.mesh(), newPipeline, optimizer, others, model);
    }

    private Strategy ensureStrategy(String call) {
        if (strategy == null) {
            throw new IllegalStateException(
                    call + ": expected ranks that train together, got " + this + "; begin with RunState.of(strategy)");
        }
        return strategy;
    }

    /**
     * Returns all that is needed to go on exactly.
     *
     * @param newOptimizer of the same parameters
     * @throws IllegalArgumentException when it is that of other parameters
     */
    public RunState optimizer(Optimizer newOptimizer) {
        if (Checks.given("optimizer", newOptimizer).parameters() != parameters) {
            throw new IllegalArgumentException(
                    "optimizer: expected that of the same parameters, got that of others: " + newOptimizer);
        }
        return new RunState(parameters, strategy, mesh, pipeline, newOptimizer, others, model);
    }

    /**
     * Returns this and further state.
     *
     * @param owners whose state is the same on all ranks: {@link dev.chagres.recipe.Quantizers}, {@link dev.chagres.optim.LossScaler}, a
     *     {@link State} of your own numbers
     */
    public RunState with(StateOwner... owners) {
        List<StateOwner> all = new ArrayList<>(others);
        all.addAll(List.of(Checks.givenAll("owners", owners)));
        return new RunState(parameters, strategy, mesh, pipeline, optimizer, List.copyOf(all), model);
    }

    /** Returns the same whose checkpoints in folders are also such of another form, as {@code newModel} says. A file stays as it is. */
    public RunState with(ModelFiles newModel) {
        return new RunState(
                parameters, strategy, mesh, pipeline, optimizer, others, Checks.given("newModel", newModel));
    }

    /**
     * Returns names, types and shapes of the entries of a file; a number of the host is an INT64 scalar.
     *
     * @throws IllegalArgumentException as {@link #save}
     * @throws IllegalStateException as {@link #save}
     */
    public List<TensorSpec> specs() {
        return strategy == null
                ? Safetensors.specs(ofOneRank())
                : ofRanks(strategy).specs();
    }

    /**
     * Writes a file, after the work enqueued on the parameters' stream. It is written under another name and then replaces the old one; after
     * a failure the old one is unchanged.
     *
     * @param metadata text that goes into the header, that of rank 0
     * @throws dev.chagres.io.SafetensorsException on every rank, when the file cannot be written
     * @throws IllegalArgumentException when two states have a name in common, or without an optimizer weights are kept {@code QUANTIZED_ONLY}
     *     on several ranks
     * @throws IllegalStateException when something is closed, layers are split or divided into stages and neither {@link #over} nor {@link
     *     #stages} was called, an owner has scales that are not reduced over the ranks, or ranks have other states
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void save(Path file, Map<String, String> metadata) {
        Checks.given("file", file, "metadata", metadata);
        if (strategy == null) {
            Safetensors.save(file, ofOneRank(), stream(), metadata);
        } else {
            ofRanks(strategy).save(file, metadata);
        }
    }

    /**
     * Publishes a checkpoint in the folder of a run, after the work enqueued on the parameters' stream. Each rank writes what it has, to files
     * that all ranks see; nothing is gathered. The files have the same bytes whatever ranks have written them. After a failure nothing is
     * published.
     *
     * @param folder of rank 0; what other ranks name is not used
     * @param step that the checkpoint is named by; one of the same step is replaced
     * @param metadata text for readers, that of rank 0; {@link Retention#METRIC} is a number by which the best are kept
     * @throws dev.chagres.io.SafetensorsException on every rank, when it cannot be written, or another program saves there
     * @throws IllegalArgumentException as {@link #save(Path, Map)}, when weights are kept {@code QUANTIZED_ONLY}, or the step is negative
     * @throws IllegalStateException as {@link #save(Path, Map)}
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void save(CheckpointFolder folder, long step, Map<String, String> metadata) {
        begin(folder, step, metadata, WAITING_BYTES).publish();
    }

    /**
     * Begins a checkpoint that {@link PendingCheckpoint#publish} publishes: as {@link #save(CheckpointFolder, long, Map)}, with the same
     * bytes, but weights and the optimizer's state are copied while later work runs, and a thread writes the files. The next optimizer step
     * waits for the copies; what other owners have is copied before this returns. Each rank calls it.
     *
     * <p>The copies go through page-locked memory of the host, as much as the state has and at most {@link
     * CheckpointFolder#withPinnedBytes}; it stays until the device is closed. Of a larger state the next step waits until the rest is
     * written.
     *
     * @param folder of rank 0; what other ranks name is not used
     * @param step that the checkpoint is named by; one of the same step is replaced
     * @param metadata text for readers, that of rank 0
     * @throws dev.chagres.io.SafetensorsException on every rank, when the folder cannot be written, or the checkpoint before, which is
     *     published first, could not be
     * @throws IllegalArgumentException as {@link #save(CheckpointFolder, long, Map)}
     * @throws IllegalStateException as {@link #save(CheckpointFolder, long, Map)}
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public PendingCheckpoint saveInBackground(CheckpointFolder folder, long step, Map<String, String> metadata) {
        return begin(folder, step, metadata, Checks.given("folder", folder).pinnedBytes());
    }

    /**
     * Takes the page-locked memory of {@link #saveInBackground} now, so that the first save does not wait for it: the system locks about a
     * gibibyte a second.
     *
     * @throws IllegalStateException when the strategy is closed, or the state cannot be saved
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.bindings.CudaException when the host does not have that many bytes
     */
    public void reserve(CheckpointFolder folder) {
        Checks.given("folder", folder);
        Set<String> weights = weights();
        shards().reserve(weights, model, updated(weights), folder.pinnedBytes());
    }

    private PendingCheckpoint begin(CheckpointFolder folder, long step, Map<String, String> metadata, long most) {
        Checks.given("folder", folder, "metadata", metadata);
        if (step < 0) {
            throw new IllegalArgumentException("step: expected 0 or more, got " + step);
        }
        PendingCheckpoint.OfDevice pending = PendingCheckpoint.OfDevice.of(Inside.state(stream()));
        pending.finish(parameters);
        Set<String> weights = weights();
        PendingCheckpoint begun = shards().begin(folder, step, metadata, weights, model, updated(weights), most);
        pending.add(parameters, begun);
        return begun;
    }

    private ShardedState shards() {
        return strategy == null ? alone() : ofRanks(strategy);
    }

    /** Returns which tensors an optimizer's step alone changes. */
    private Predicate<String> updated(Set<String> weights) {
        Set<String> others = further().tensors().keySet();
        return name -> isUpdated(name, weights, others);
    }

    /** Returns whether an optimizer's step alone changes a tensor: a weight, or what the optimizer keeps under a longer name. */
    private static boolean isUpdated(String name, Set<String> weights, Set<String> others) {
        if (others.contains(name)) {
            return false;
        }
        for (int end = name.length(); end > 0; end = name.lastIndexOf('.', end - 1)) {
            if (weights.contains(name.substring(0, end))) {
                return true;
            }
        }
        return false;
    }

    private ShardedState alone() {
        return new ShardedState(parameters, null, null, List.of(), ofOneRank());
    }

    private Set<String> weights() {
        List<Parameter> all = pipeline == null
                ? parameters.all()
                : pipeline.plan().whole().groups().values().stream()
                        .flatMap(List::stream)
                        .toList();
        return all.stream().map(Parameter::name).collect(Collectors.toSet());
    }

    /**
     * Reads a file, or a checkpoint: its folder, or that of the run, whose last one it is. Of a checkpoint each rank reads the bytes that it
     * keeps. There must be exactly the entries of {@link #specs}; for weights alone it may have more, which are ignored. Names, types
     * and shapes are compared first, then checksums, numbers and the values of tensors with limits: if anything does not fit, nothing is
     * loaded, and the error lists the first names, types and shapes. Gradients of the current step are discarded.
     *
     * @throws dev.chagres.io.SafetensorsException on every rank with the same text, as {@link Safetensors#load} does
     * @throws IllegalArgumentException as {@link #save}
     * @throws IllegalStateException as {@link #save}
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void load(Path file) {
        Checks.given("file", file);
        Inside.state(stream()).awaitReads();
        if (strategy == null) {
            Safetensors.load(file, ofOneRank(), stream());
        } else {
            ofRanks(strategy).load(file);
        }
    }

    /**
     * Like {@link #load}, for a file of a run that may have had another recipe: see {@link Safetensors#loadUnderOtherRecipe}.
     *
     * @return what was not loaded, the same on every rank
     * @throws dev.chagres.io.SafetensorsException on every rank with the same text, as {@link Safetensors#load} does
     * @throws IllegalArgumentException as {@link #save}
     * @throws IllegalStateException as {@link #save}
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public RecipeDifferences loadUnderOtherRecipe(Path file) {
        Checks.given("file", file);
        Inside.state(stream()).awaitReads();
        return strategy == null
                ? Safetensors.loadUnderOtherRecipe(file, ofOneRank(), stream())
                : ofRanks(strategy).loadUnderOtherRecipe(file);
    }

    /**
     * Fills the weights from elsewhere than a file of this state, such as a checkpoint of another program. Rank 0 asks for the source of each
     * entry of {@link #specs}, in their order, and then for its bytes, piece by piece. Gradients of the current step are discarded.
     *
     * @param sources returns what has the bytes of an entry, in its type and shape, or null, which leaves it as it is; called on rank 0 alone
     * @throws IllegalArgumentException as {@link #save}, or when a source has another spec than it was asked for
     * @throws IllegalStateException as {@link #save}, or when this is more than weights; of other ranks, when rank 0 failed
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void loadFrom(TensorSource.Lookup sources) {
        Checks.given("sources", sources);
        if (optimizer != null || !others.isEmpty()) {
            throw new IllegalStateException("loadFrom: expected weights alone, got " + this);
        }
        Inside.state(stream()).awaitReads();
        if (strategy == null) {
            Safetensors.loadFrom(sources, ofOneRank(), stream());
        } else {
            ofRanks(strategy).loadFrom(sources);
        }
    }

    private Stream stream() {
        return parameters.scope().stream();
    }

    private State ofOneRank() {
        return optimizer == null
                ? State.of(parameters.weightState(), further())
                : State.of(parameters.state(), optimizer.state(), further());
    }

    private State further() {
        return State.of(others.stream().map(StateOwner::state).toArray(State[]::new));
    }

    private ShardedState ofRanks(Strategy present) {
        present.ensureOpen();
        if (pipeline != null) {
            pipeline.ensureOpen();
        } else {
            ensureAllLayers();
        }
        if (pipeline == null && isWhole()) {
            return new ShardedState(parameters, present, present.communicator(), List.of(), ofOneRank());
        }
        StateShards tensors = new StateShards(present, pipeline, mesh);
        State own = optimizer == null
                ? parameters
                        .access()
                        .weightStepState(
                                pipeline == null ? null : pipeline.plan().whole())
                : State.of(parameters.access().stepState(), optimizer.stepState());
        List<StateVector> vectors = optimizer == null ? List.of() : optimizer.vectors();
        return new ShardedState(
                parameters,
                present,
                tensors.world,
                tensors.of(vectors),
                State.of(own, tensors.coded(vectors), further()));
    }

    /** Returns whether each rank has all weights and all of the optimizer's state. */
    private boolean isWhole() {
        return parameters.access().shard() == null
                && !parameters.tensorParallel().isSplit();
    }

    private void ensureAllLayers() {
        TensorParallel ranks = parameters.tensorParallel();
        if (ranks.isSplit() && (mesh == null || mesh.size(MeshDimension.TENSOR) != ranks.size())) {
            throw new IllegalStateException(
                    "state: expected whole layers, got those of " + ranks + "; call RunState.of(strategy).over(mesh)");
        }
        parameters.access().ensureAllStages();
    }

    /** Returns whose state it is. */
    @Override
    public String toString() {
        return (optimizer == null ? "weights of " : "state of ") + (strategy == null ? "one rank" : strategy);
    }
}
