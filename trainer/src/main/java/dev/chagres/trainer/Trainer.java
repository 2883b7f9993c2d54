package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.BatchSource;
import dev.chagres.batch.Batches;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.batch.TrainedModel;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.ModelFiles;
import dev.chagres.launch.Rank;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.trainer.ModelSetup.Enqueuing;
import dev.chagres.trainer.ModelSetup.Precision;
import dev.chagres.trainer.ModelSetup.Steps;
import dev.chagres.trainer.ModelSetup.Updates;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.Evaluation;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Trains any {@link TrainedModel}, on one rank or on many, which may be threads of this program or processes: each step is forward, backward,
 * clipping of the gradients' norm, and AdamW or another optimizer.
 *
 * {@snippet file="dev/chagres/trainer/TrainerTest.java" region="trainer"}
 *
 * <p>Unless told otherwise it trains in FP32 on one rank at the rate 0.001, clips the norm to 1 and takes AdamW (0.9, 0.98, 1e-8, decay 0.01 of
 * matrices). Of several ranks each computes the micro-batches whose number modulo the number of data-parallel ranks is its own; the gradients
 * of all are summed.
 *
 * <p>Threading: immutable.
 */
public final class Trainer {
    /** One batch with the consumer, one ready, one being filled. */
    private static final int BATCHES = 3;

    private ModelSetup setup;
    private LearningRateSchedule schedule =
            new LearningRateSchedule(1e-3f, 0, 0, LearningRateSchedule.Decay.CONSTANT, 1);
    private List<Callback> callbacks = List.of();
    private Map<String, String> description = Map.of();
    private @Nullable Checkpoints saved;
    private @Nullable Path resumed;
    private @Nullable Consumer<RunState> start;

    private Trainer(ModelSetup setup) {
        this.setup = setup;
    }

    private Trainer(Trainer other) {
        setup = other.setup;
        schedule = other.schedule;
        callbacks = other.callbacks;
        description = other.description;
        saved = other.saved;
        resumed = other.resumed;
        start = other.start;
    }

    /**
     * Makes a trainer.
     *
     * @param model makes the model on each rank
     * @param shape the most that a batch of all ranks may hold
     */
    public static Trainer of(TrainedModel.Factory model, BatchShape shape) {
        return new Trainer(ModelSetup.of(model, shape));
    }

    private Trainer with(ModelSetup newSetup) {
        var copy = new Trainer(this);
        copy.setup = newSetup;
        return copy;
    }

    /** Returns the same whose weights and activations have another type; in FP16 the loss is scaled. */
    public Trainer withDtype(DType dtype) {
        Precision present = setup.precision();
        return with(setup.with(new Precision(dtype, present.recipe(), present.productGradients())));
    }

    /** Returns the same that computes the products of the layers in eight bits. */
    public Trainer withRecipe(Recipe recipe) {
        Precision present = setup.precision();
        return with(setup.with(new Precision(present.dtype(), recipe, present.productGradients())));
    }

    /**
     * Returns the same whose products write gradients of weights in another type, as {@link
     * dev.chagres.parameter.ModelPlan#productGradients} says: with that of the weights they take two bytes an element instead of four.
     *
     * @param dtype FLOAT32, or that of the weights; another is without effect
     */
    public Trainer withProductGradients(DType dtype) {
        Precision present = setup.precision();
        return with(setup.with(new Precision(present.dtype(), present.recipe(), dtype)));
    }

    /** Returns the same with other first weights; equal seeds give equal ones. */
    public Trainer withSeed(long seed) {
        return with(setup.with(seed));
    }

    /**
     * Returns the same with other updates, by any optimizer.
     *
     * @param maxNorm to which the gradients' norm is clipped
     */
    public Trainer withOptimizer(OptimizerConfig optimizer, float maxNorm) {
        return with(setup.with(new Updates(optimizer, maxNorm)));
    }

    /**
     * Returns the same on several ranks, which are threads of this program with a device each, and a whole copy of the model.
     *
     * @throws IllegalArgumentException when there are less than 1
     */
    public Trainer withRanks(int ranks) {
        return withMesh(MeshShape.ofOne().with(MeshDimension.REPLICATE, ranks));
    }

    /** Returns the same on several ranks, which are threads of this program with a device each. */
    public Trainer withMesh(MeshShape mesh) {
        return with(setup.with(setup.layout().with(mesh)));
    }

    /** Returns the same whose ranks along {@code SHARD} and {@code CONTEXT} shard the model. */
    public Trainer withSharding(FullyShardedConfig sharding) {
        return with(setup.with(setup.layout().with(sharding)));
    }

    /** Returns the same whose ranks are processes, of which this is one, as {@link dev.chagres.launch.Ranks#fromEnvironment} finds them. */
    public Trainer withProcesses() {
        return with(setup.with(setup.layout().with(RankLayout.Places.PROCESSES)));
    }

    /** Returns the same that captures a step for each bucket of batches, and replays it. */
    public Trainer withCapturedSteps() {
        return with(setup.with(new Enqueuing(ProductPlan.FIRST, MultiprocessorMargin.NONE, Steps.CAPTURED, 0)));
    }

    /**
     * Returns the same with inputs of layers in page-locked memory of the host between forward and backward: for models whose layers are
     * recomputed, which keep nothing else. Losses have the same bits. Such steps are not captured.
     */
    public Trainer withOffload(ActivationOffload offload) {
        return with(setup.with(Objects.requireNonNull(offload, "offload")));
    }

    /** Returns the same with other learning rates, of steps counted from 1. */
    public Trainer withSchedule(LearningRateSchedule newSchedule) {
        var copy = new Trainer(this);
        copy.schedule = newSchedule;
        return copy;
    }

    /** Returns the same with a callback after those that it has. */
    public Trainer withCallback(Callback callback) {
        var copy = new Trainer(this);
        copy.callbacks = Stream.concat(callbacks.stream(), Stream.of(callback)).toList();
        return copy;
    }

    /** Returns the same that evaluates held-out data, whose data are read once before the first step; otherwise as {@link #withCallback}. */
    public Trainer withEvaluation(Evaluation evaluation) {
        return withCallback(evaluation);
    }

    /**
     * Returns the same that saves its state at the end of a run, also of one that fails or is stopped.
     *
     * @param file is replaced
     * @param every after how many steps, besides; 0 for the end alone
     */
    public Trainer withSave(Path file, int every) {
        return withCheckpoints(Checkpoints.file(file).withEvery(every));
    }

    /** Returns the same that saves its state as {@code checkpoints} say, after all callbacks, also that of a run that fails or is stopped. */
    public Trainer withCheckpoints(Checkpoints checkpoints) {
        var copy = new Trainer(this);
        copy.saved = checkpoints;
        return copy;
    }

    /** Returns the same whose checkpoints in folders are also such of another form, such as folders of transformers. */
    public Trainer withModelFiles(ModelFiles files) {
        return with(setup.with(files));
    }

    /** Returns the same that writes a text into the files that it saves. */
    public Trainer withText(String key, String text) {
        var copy = new Trainer(this);
        copy.description = new LinkedHashMap<>(description);
        copy.description.put(key, text);
        return copy;
    }

    /**
     * Returns the same that begins with other weights than first ones, where it does not resume a run.
     *
     * @param weights loads them; called on each rank with its weights before the first step, such as {@code weights ->
     *     Esm2Checkpoint.begin(weights, folder)}
     */
    public Trainer withStart(Consumer<RunState> weights) {
        var copy = new Trainer(this);
        copy.start = weights;
        return copy;
    }

    /** Returns the same that goes on from a saved file, or from a checkpoint or the last one of a folder, on as many ranks as it likes. */
    public Trainer withResume(Path file) {
        var copy = new Trainer(this);
        copy.resumed = file;
        return copy;
    }

    /**
     * Trains on what packs into batches of sequences, and waits for the end.
     *
     * @param data opens the sequences from the first one on; a run that is resumed leaves out those that were taken
     * @param steps how many at most, those of a resumed run included
     * @return how many were made now
     * @throws IllegalArgumentException when data to evaluate have no labelled token
     * @throws IllegalStateException when steps are to be captured of ranks that shard weights or have some of the layers or tokens, or
     *     of state or activations in the host's memory
     * @throws TrainingException when the numbers run away, a file cannot be used, a rank fails, or there are fewer devices than ranks
     * @throws InterruptedException when the thread is interrupted while it waits for a batch
     * @throws RuntimeException what reading the data or a callback throws, once the state is saved
     */
    public int train(Supplier<? extends TokenSequences> data, int steps) throws InterruptedException {
        if (setup.enqueuing().steps() == Steps.CAPTURED && !setup.layout().isCapturable()) {
            throw new IllegalStateException(
                    "withCapturedSteps: expected ranks that have all weights, layers and tokens of"
                            + " their micro-batches, got " + setup.layout());
        }
        if (setup.enqueuing().steps() == Steps.CAPTURED
                && !setup.updates().optimizer().isCapturable()) {
            throw new IllegalStateException(
                    "withCapturedSteps: expected an optimizer with its state on the device, got "
                            + setup.updates().optimizer());
        }
        if (setup.enqueuing().steps() == Steps.CAPTURED && !setup.offload().isNone()) {
            throw new IllegalStateException(
                    "withCapturedSteps: expected inputs of layers on the device, got withOffload(" + setup.offload()
                            + ")");
        }
        SavedRun before = SavedRun.of(resumed, Wording.CALLS);
        if (before.steps() >= steps) {
            return 0;
        }
        checkEvaluations();
        TokenSequences sequences = data.get();
        before.skip(sequences, () -> false);
        var packer = new SequencePacker(setup.shape(), sequences, PackingOrder.AS_GIVEN, before.data());
        try (var _ = claimed();
                var batches = new BatchSource(packer, BATCHES);
                Device device = setup.layout().count() == 1 ? Device.open() : null;
                Training model = device != null
                        ? ModelTraining.of(device, setup)
                        : new RankedTraining(setup, purpose(), Wording.CALLS, () -> false)) {
            try {
                before.load(model, resumed, Wording.CALLS);
                if (start != null && resumed == null) {
                    model.begin(start);
                }
                return run(model, batches).run(before, steps);
            } catch (RuntimeException | InterruptedException | Error failure) {
                model.fail(failure);
                throw failure;
            }
        }
    }

    /** Null where nothing is saved, or ranks are processes, of which the one that saves claims the place when it does. */
    private @Nullable Checkpoints claimed() {
        Checkpoints claimed = setup.layout().places() == RankLayout.Places.PROCESSES ? null : saved;
        if (claimed != null) {
            TrainingRun.naming(Wording.CALLS, claimed::claim);
        }
        return claimed;
    }

    /**
     * Returns what a step on a full batch takes of memory and operations, before anything is allocated or computed: the program's own calls
     * say it, made on devices that count.
     *
     * @throws IllegalStateException when the provider is not the reference, the only one that counts
     * @throws TrainingException when there are fewer devices than ranks; the environment variable CHAGRES_REFERENCE_DEVICES sets their number
     */
    public StepEstimate estimate() {
        return StepEstimate.of(setup);
    }

    /**
     * Makes steps on full batches of made-up sequences, and tells what they took, to compare with {@link #estimate}.
     *
     * @param steps how many are timed, behind as many that are not
     * @throws TrainingException when there are fewer devices than ranks, or a rank fails
     */
    public StepEstimate.Measured measure(int steps) {
        return StepEstimate.measured(setup, steps);
    }

    /**
     * Makes steps on full batches of made-up sequences on one device, kernel by kernel, and tells what takes their time.
     *
     * @param steps how many are measured, behind two that are not
     * @param trace receives the calls of layers as JSON, which Perfetto opens; it stays open
     * @throws IllegalStateException when there are several ranks, or steps are to be captured
     * @throws IOException when the stream throws it
     */
    public StepEstimate.Profiled profile(int steps, OutputStream trace) throws IOException {
        if (setup.layout().count() > 1 || setup.enqueuing().steps() == Steps.CAPTURED) {
            throw new IllegalStateException("profile: expected one rank whose steps are enqueued one by one, got "
                    + setup.layout() + ", " + setup.enqueuing().steps());
        }
        return StepEstimate.profiled(setup, steps, trace);
    }

    private void checkEvaluations() {
        for (Callback callback : callbacks) {
            if (callback instanceof Evaluation evaluation) {
                evaluation.check();
            }
        }
    }

    private TrainingRun run(Training model, Batches batches) {
        var run = new TrainingRun(
                model,
                batches,
                step -> schedule.at(step + 1),
                model.peakFlops(),
                Wording.CALLS,
                Stream.concat(callbacks.stream(), Stream.ofNullable(saved)).toList());
        run.describe(description);
        return run;
    }

    /** What must be the same in all processes, as far as it can be written down. */
    private String purpose() {
        return String.join(
                "\n",
                setup.shape().toString(),
                "seed " + setup.seed(),
                setup.precision().toString(),
                "ranks " + setup.layout(),
                setup.updates().toString(),
                setup.enqueuing().toString(),
                schedule.toString(),
                callbacks.stream().filter(Evaluation.class::isInstance).toList().toString(),
                "save " + saved,
                "resume " + resumed);
    }

    /**
     * Trains on one of several ranks, each of which calls this with batches of its own, and has as many of them.
     *
     * @param batches of this rank, each {@link dev.chagres.batch.Batch#partOf} the labelled tokens of all ranks
     * @param steps how many at most
     * @return how many were made
     * @throws IllegalArgumentException when data to evaluate have no labelled token
     * @throws IllegalStateException when a file is to be resumed, or ranks are to split layers or tokens
     * @throws TrainingException when the numbers run away, or a file cannot be written
     * @throws InterruptedException when the thread is interrupted while it waits for a batch
     * @throws RuntimeException what reading the data or a callback throws, at once
     */
    public int train(Rank rank, Batches batches, int steps) throws InterruptedException {
        if (resumed != null || setup.layout().dataRanks() != setup.layout().count()) {
            throw new IllegalStateException(
                    "train: expected a new run of ranks that have all layers and whole sequences,"
                            + " for each has batches of its own, got " + (resumed != null ? resumed : setup.layout()));
        }
        checkEvaluations();
        try (Training model = ModelTraining.ofOwnData(rank, setup)) {
            if (start != null) {
                model.begin(start);
            }
            return run(model, batches).run(steps);
        }
    }
}
