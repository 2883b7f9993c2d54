package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.NormOverRanks;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard.Part;
import dev.chagres.model.Parameters;
import dev.chagres.model.PlacedGroup;
import dev.chagres.model.QuantizerSite;
import dev.chagres.model.State;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.StateVector;
import dev.chagres.recipe.GatheredWeights;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.ShardedGradients.MicroBatch;
import java.util.List;
import java.util.function.BiConsumer;
import org.jspecify.annotations.Nullable;

/**
 * Data-parallel training in which each rank keeps a part of the optimizer's state, of the gradients and of the weights, as its {@link
 * ZeroStage} says: what {@link DataParallel} computes, in less memory.
 *
 * <p>Rank r of N keeps elements {@code [r C / N, (r + 1) C / N)} of every group of the plan, C elements with its padding. A group's
 * gradients are summed as soon as backward has completed them, each rank receiving its part, while backward goes on; optimizers see the
 * rank's part alone. In stages 1 and 2 the updated weights are gathered at the end of a step. In stage 3 a group's weights are gathered
 * before its layers run, forward and backward, into the memory that the layers read, the next group's meanwhile.
 *
 * <p>Stages 1 and 2 reduce once a step: call {@link #lastMicroBatch} before the last micro-batch, so that this overlaps backward;
 * micro-batches before it communicate nothing, and in stage 2 keep whole gradients meanwhile. Stage 3 reduces in each micro-batch, and all
 * ranks have equally many.
 *
 * {@snippet file="dev/chagres/layer/FullyShardedTest.java" region="sharded"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@link ZeroStage}; PyTorch's {@code torch.distributed.fsdp.fully_shard}.
 */
public final class FullySharded extends Strategy {
    private final FullyShardedConfig config;
    private final ShardedRanks ranks;
    private final Communicator gathers;
    private final ShardedGradients gradients;
    /** Null where each rank has all weights. */
    private final @Nullable ShardedWeights weights;

    private final GatheredWeights gathered = new Gathered();

    private FullySharded(FullyShardedConfig config, Parameters parameters, ShardedRanks ranks) {
        super(parameters, ranks.all());
        this.config = config;
        this.ranks = ranks;
        Communicator copy = ranks.copy();
        gathers = copy.split(0, copy.rank(), copy.config().withName("weights"));
        weights = stage() == ZeroStage.THREE ? new ShardedWeights(parameters, gathers, bytes) : null;
        gradients = new ShardedGradients(parameters, ranks, config, bytes);
    }

    /**
     * Takes memory for this rank's part of everything in {@code plan}, and begins every parameter as it was declared. Each rank calls
     * it.
     *
     * @param plan is padded for as many ranks as the communicator has
     * @param dtype type of the weights that were declared without one: FLOAT32, BFLOAT16 or FLOAT16
     * @param seed the same on each rank
     * @param communicator of the ranks that share the model out; closed after this
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, or ranks have other parameters: other names, shapes, types or
     *     seeds, or others frozen; or another stage
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static FullySharded allocate(
            ModelPlan plan, DType dtype, long seed, ZeroStage stage, Communicator communicator) {
        FullyShardedConfig config = FullyShardedConfig.of(Checks.given("stage", stage));
        return allocate(plan, dtype, seed, config, ShardedRanks.of(Checks.given("communicator", communicator)));
    }

    /**
     * Takes memory as {@link #allocate(ModelPlan, DType, long, ZeroStage, Communicator)} does, for one of several copies of the model
     * (hybrid sharding): the ranks along {@link MeshDimension#SHARD} and {@link MeshDimension#CONTEXT} share a copy out, those along {@link
     * MeshDimension#REPLICATE} have the same part of each. Weights are gathered and gradients reduced and scattered along the first, as
     * where links are fast, and a part's sums are added up along the second.
     *
     * <p>What is shared out is what this rank has of the model: its heads and columns where ranks along {@link MeshDimension#TENSOR} split
     * layers, its stages where there are ranks along {@link MeshDimension#PIPELINE}.
     *
     * {@snippet file="dev/chagres/layer/HybridShardedTest.java" region="hybrid"}
     *
     * @param plan is padded for as many ranks as share copies out; of a pipeline the part of this rank's stages
     * @param mesh stays open as long as this; each of its ranks calls this
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, or ranks have other parameters, as in {@link
     *     #allocate(ModelPlan, DType, long, ZeroStage, Communicator)}, or another configuration
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static FullySharded allocate(ModelPlan plan, DType dtype, long seed, FullyShardedConfig config, Mesh mesh) {
        Checks.given("config", config);
        return allocate(plan, dtype, seed, config, ShardedRanks.of(Checks.given("mesh", mesh), config.optimizer()));
    }

    private static FullySharded allocate(
            ModelPlan plan, DType dtype, long seed, FullyShardedConfig config, ShardedRanks ranks) {
        Communicator all = ranks.all();
        Checks.given("plan", plan).padGroups(all.ranks());
        Parameters parameters = Parameters.allocate(all.device(), plan, dtype, seed, ranks.shard(config.stage()));
        FullySharded made = null;
        try {
            made = new FullySharded(config, parameters, ranks);
            SameParameters.ensure(parameters, all, seed, "stage", config.stage().ordinal() + 1L);
            SameParameters.ensure(
                    parameters, all, seed, "optimizer", config.optimizer().ordinal());
            SameParameters.ensure(
                    parameters, all, seed, "reduceType", config.reduceType().code());
            NormOverRanks norms = new NormOverRanks(parameters.scope(), ranks.updating());
            parameters.adopt(norms);
            parameters.sharing().step(norms);
            made.join();
            return made;
        } catch (RuntimeException | Error failure) {
            if (made == null) {
                parameters.close();
            } else {
                made.free();
            }
            throw failure;
        }
    }

    /** Returns what is shared out. */
    public ZeroStage stage() {
        return config.stage();
    }

    /** {@inheritDoc} True in stage 3. */
    @Override
    public boolean needsEqualMicroBatches() {
        return stage() == ZeroStage.THREE;
    }

    @Override
    boolean isSummed(int group) {
        return gradients.isSummed(group);
    }

    @Override
    void reading(Parameter parameter) {
        ShardedWeights shared = weights;
        if (shared == null) {
            progress.uses(parameter.group(), WeightForm.WHOLE);
        } else {
            ensureInCall(parameter);
            WeightForm form = shared.form(parameter, progress.pass(), progress.direction());
            use(parameter.group(), form, shared);
            shared.lend(parameter.group(), form);
        }
    }

    private void use(int group, WeightForm form, ShardedWeights shared) {
        if (progress.uses(group, form)) {
            ensureEnqueues();
            shared.use(group, form, progress.pass(), progress.direction());
        }
    }

    @Override
    void gather(Quantizers quantizers) {
        if (weights != null) {
            weights.gatherInEightBits(quantizers, gathered);
        }
    }

    /** Hands weights in eight bits to products. */
    private final class Gathered implements GatheredWeights {
        @Override
        public Tensor gathered(QuantizerSite site) {
            ShardedWeights shared = Checks.given("weights", weights);
            ensureInCall(site.weight());
            use(site.weight().group(), WeightForm.EIGHT_BITS, shared);
            return shared.eightBits(site);
        }

        @Override
        public void record() {
            ensureEnqueues();
            Checks.given("weights", weights).record(progress.pass());
        }
    }

    private void ensureInCall(Parameter parameter) {
        if (!progress.isInCall()) {
            throw new IllegalStateException("weight of " + parameter.name()
                    + ": shared out among " + communicator.ranks()
                    + " ranks, it is whole in layers' calls of a pass that FullySharded follows alone; call follow(pass),"
                    + " or gatherState");
        }
    }

    @Override
    void writing(Parameter parameter) {
        gradients.write(parameter.group());
    }

    @Override
    void finish() {
        gradients.finish();
    }

    @Override
    void restart() {
        gradients.restart();
    }

    @Override
    void complete(int group) {
        if (isLast() || stage() == ZeroStage.THREE) {
            gradients.complete(group, isLast() ? MicroBatch.LAST : MicroBatch.EARLIER);
        }
    }

    @Override
    void release(int group, WeightForm form) {
        if (weights != null) {
            weights.release(group, form);
        }
    }

    @Override
    void stepped() {
        Communicator copies = ranks.copies();
        if (copies != null && ranks.splitsOptimizer()) {
            gatherUpdated(ranks.part(), copies);
        }
        if (weights == null) {
            gatherUpdated(new Part(0, 1), gathers);
        } else {
            weights.changed();
        }
    }

    /** Gathers in place {@code part} of all updated weights, of which each rank {@code among} those has updated a part. */
    private void gatherUpdated(Part part, Communicator among) {
        Communicator.group(() -> {
            for (PlacedGroup group : parameters.sharing().groups()) {
                for (GroupPiece piece : group.pieces()) {
                    if (piece.isTrained()) {
                        gather(piece, part, among);
                    }
                }
            }
        });
    }

    private void gather(GroupPiece piece, Part part, Communicator among) {
        Tensor vector = parameters.sharing().vector(piece.dtype());
        long count = part.of(piece.count());
        long begin = weights == null ? piece.weightOffset() + part.begin(piece.count()) : part.of(piece.weightOffset());
        long own = count / among.ranks();
        try (Scope views = Inside.scratch(stream).open()) {
            Tensor whole = views.view(vector, begin, count);
            bytes.allGather(whole);
            among.allGather(views.view(vector, begin + among.rank() * own, own), whole, stream);
        }
    }

    @Override
    void ensureEnqueues() {
        if (Inside.capture(stream) != null) {
            throw new CaptureException(
                    "FullySharded: a step whose weights or gradients are shared out cannot be captured;"
                            + " enqueue it, or train with DataParallel");
        }
    }

    /** Returns the bytes that this rank holds of weights and gradients: its parts, and memory for whole groups. */
    public long byteSize() {
        return parameters.byteSize() + gradients.byteSize() + (weights == null ? 0 : weights.byteSize());
    }

    /**
     * Gathers what must be saved to go on exactly, a group at a time, and hands it out tensor by tensor with the names and shapes that {@link
     * Parameters#state()} and {@link AdamW#state()} have of a model that is neither shared out nor split. Each rank calls it, with the same
     * optimizer's state; a rank of a pipeline is handed its stages.
     *
     * @param optimizer of these parameters
     * @param sink is handed each tensor on every rank, until it returns
     * @throws IllegalStateException when this or the optimizer is closed
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void gatherState(AdamW optimizer, BiConsumer<String, Tensor> sink) {
        ensureOpen();
        List<StateVector> vectors = Checks.given("optimizer", optimizer).vectors();
        Checks.given("sink", sink);
        BiConsumer<String, Tensor> wholeLayers = (name, tensor) -> TensorParallelState.gather(
                parameters, new State.Builder().tensor(name, tensor).build(), sink);
        GatheredState state = new GatheredState(parameters, ranks);
        for (PlacedGroup group : parameters.sharing().groups()) {
            for (GroupPiece piece : group.pieces()) {
                state.weights(group, piece, wholeLayers);
                if (piece.isTrained()) {
                    for (StateVector vector : vectors) {
                        if (vector.isFor(piece.dtype())) {
                            state.vector(group, piece, vector, wholeLayers);
                        }
                    }
                }
            }
        }
    }

    /**
     * Says what went with ranks that have failed: what {@link DataParallel#shrink} goes on with is not left here.
     *
     * @param ranks as {@link dev.chagres.nccl.RankFailedException#ranks()} names them
     * @return which parts, of which parameters, and who else has them
     * @throws IllegalArgumentException when there is no such rank
     */
    public String explainLoss(List<Integer> ranks) {
        return new LostShards(this, parameters, this.ranks, config).explain(Checks.given("ranks", ranks));
    }

    @Override
    Part updatedBy(int rank) {
        return ranks.shard(ranks.place(rank), stage()).updated();
    }

    @Override
    void checkMesh(Mesh mesh) {
        if (!mesh.shape().equals(ranks.shape())) {
            throw new IllegalArgumentException(
                    "mesh: expected the one that FullySharded.allocate was given (" + ranks.shape() + "), got " + mesh);
        }
    }

    @Override
    Part weightsOf(int rank) {
        Part part = ranks.shard(ranks.place(rank), stage()).weights();
        return part == null ? new Part(0, 1) : part;
    }

    @Override
    ShardedState stateOf(AdamW optimizer, State others) {
        List<SharedTensor> shared = new SharedTensors(parameters, ranks, stage()).of(optimizer.vectors());
        State own = State.of(parameters.sharing().stepState(), optimizer.stepState(), others);
        return new ShardedState(this, shared, own);
    }

    @Override
    void loaded() {
        if (weights != null) {
            weights.changed();
        }
    }

    @Override
    public String explain() {
        String memory = stage() == ZeroStage.ONE ? "for all" : "for two groups of each size";
        String gathered = stage() == ZeroStage.THREE
                ? "weights gathered group by group on another stream before their layers run, the next group's meanwhile"
                        + (weights != null && weights.gathersEightBits() ? ", those of products in eight bits" : "")
                : "weights gathered after the step";
        return this + ": gradients reduced and scattered group by group on a stream of their own, from memory " + memory
                + "; " + gathered + explainCopies();
    }

    private String explainCopies() {
        Communicator copies = ranks.copies();
        if (copies == null) {
            return "";
        }
        String among = "; of " + copies.ranks() + " copies of the model ";
        return ranks.splitsOptimizer()
                ? among + "each rank updates another part: a part's gradients are reduced and scattered among them, its"
                        + " updated weights gathered"
                : among
                        + "each updates its own weights: parts of gradients are summed over them, once a step, on a stream of"
                        + " their own";
    }

    /** Frees the parameters, too: this has made them. */
    @Override
    void free() {
        if (weights != null) {
            weights.close();
        }
        gradients.close();
        parameters.close();
        gathers.close();
    }

    @Override
    public String toString() {
        Communicator copies = ranks.copies();
        return "ZeRO stage " + (stage().ordinal() + 1) + " on rank " + communicator.rank() + " of "
                + communicator.ranks() + (copies == null ? "" : ", in " + copies.ranks() + " copies");
    }
}
