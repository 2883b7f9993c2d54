package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.Opened;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.Optimizer;
import dev.chagres.optim.StateVector;
import dev.chagres.parallel.NormOverRanks;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.ShardRanks;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.GatherRanks.NoWindows;
import dev.chagres.sharding.MicroBatchReduction.EqualMicroBatches;
import dev.chagres.sharding.ShardedGradients.MicroBatch;
import dev.chagres.sharding.ShardedOptimizerStep.ShardedNorm;
import java.util.List;
import java.util.function.BiConsumer;
import org.jspecify.annotations.Nullable;

// Over 400 lines: 150 are Javadoc and imports. The classes of the fields do the work.

/**
 * Data-parallel training in which each rank keeps a part of the optimizer's state, of the gradients and of the weights, as its {@link
 * ZeroStage} says. It computes the same as {@link DataParallel}, in less memory.
 *
 * <p>Rank r of N keeps elements {@code [r C / N, (r + 1) C / N)} of every group of the plan, which has C elements with its padding. A
 * group's gradients are reduced and scattered as soon as backward has completed them, while backward goes on; optimizers update only the
 * rank's part. In stages 1 and 2 the updated weights are gathered at the end of a step. In stage 3 a group's weights are gathered before
 * its layers run, forward and backward, into the memory that the layers read, while the layers of the group before run; or they are
 * gathered once a step and kept, as its {@link Reshard} says.
 *
 * <p>Stages 1 and 2 reduce once a step: call {@link #lastMicroBatch} before the last micro-batch, so that the reductions overlap its
 * backward; micro-batches before it communicate nothing, and stage 2 keeps whole gradients until then. Stage 3 reduces in each micro-batch,
 * or once a step, as its {@link GradientSync} says; all ranks must have the same number of micro-batches, and call {@link #lastMicroBatch}
 * before the same one.
 *
 * {@snippet file="dev/chagres/sharding/FullyShardedTest.java" region="sharded"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@link ZeroStage}; PyTorch's {@code torch.distributed.fsdp.fully_shard}.
 */
public final class FullySharded extends Strategy {
    private final FullyShardedConfig config;
    private final ShardedRanks ranks;
    private final GatherRanks gathers;
    private final ShardedGradients gradients;
    /** Null if each rank has all weights. */
    private final @Nullable ShardedWeights weights;

    private final @Nullable ShardedReads reads;
    /** Null if there is a single copy of the model. */
    private final @Nullable Mesh mesh;

    private final MicroBatchReduction sums;
    private final ShardedOptimizerStep steps;
    private final ShardedNorm norm;
    private final UpdatedWeights updated;
    private final ShardRanks updating;
    /** Whether closing this closes the parameters, and the mesh that a shrink has made. */
    private boolean ownsParameters;

    private boolean ownsMesh;

    /** The caller owns the parameters until {@link #begin}. */
    FullySharded(
            FullyShardedConfig config,
            Parameters parameters,
            ShardedRanks ranks,
            GatherRanks gathers,
            @Nullable Mesh mesh,
            long completedSteps) {
        super(parameters, ranks.all());
        this.config = config;
        this.ranks = ranks;
        this.mesh = mesh;
        this.gathers = gathers;
        updating = ranks.sharingUpdates();
        try (Opened opened = new Opened()) {
            steps = opened.add(new ShardedOptimizerStep(ranks.world(), stream, completedSteps));
            weights = stage() == ZeroStage.THREE
                    ? opened.add(new ShardedWeights(parameters, gathers, config.reshard(), bytes))
                    : null;
            reads = weights == null ? null : new ShardedReads(this, weights, progress);
            gradients = opened.add(new ShardedGradients(parameters, ranks, config, bytes));
            boolean equal = needsEqualMicroBatches() && ranks.updating().ranks() > 1;
            sums = new MicroBatchReduction(
                    gradients,
                    config.gradientSync(),
                    equal ? opened.add(new EqualMicroBatches(ranks.updating(), parameters)) : null);
            updated = new UpdatedWeights(parameters, ranks, stage(), gathers.communicator, bytes);
            // Last: the others communicate, and may fail.
            norm = new ShardedNorm(
                    opened.add(new NormOverRanks(parameters.scope(), ranks.updating())), steps, this::explained);
            opened.keep();
        }
    }

    /**
     * Allocates memory for this rank's part of all parameters in {@code plan}, and writes their initial values. Each rank calls it.
     *
     * @param plan padded by this call for the communicator's number of ranks
     * @param dtype type of the weights that were declared without one: FLOAT32, BFLOAT16 or FLOAT16
     * @param seed the same on each rank
     * @param communicator of the ranks that shard the model; closed after this
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, or another rank has allocated the plan: each rank makes its own;
     *     when ranks have different parameters: names, shapes, types, seeds, or which are frozen; or different stages
     * @throws RankFailedException when another rank failed or did not come
     */
    public static FullySharded allocate(
            ModelPlan plan, DType dtype, long seed, ZeroStage stage, Communicator communicator) {
        return allocate(plan, dtype, seed, FullyShardedConfig.of(Checks.given("stage", stage)), communicator);
    }

    /**
     * Allocates memory as {@link #allocate(ModelPlan, DType, long, ZeroStage, Communicator)} does, sharded as {@code config} says. There is
     * one copy of the model, so the optimizer's state is sharded among the same ranks with each {@link OptimizerSharding}.
     *
     * @param plan padded by this call for the communicator's number of ranks
     * @param dtype type of the weights that were declared without one: FLOAT32, BFLOAT16 or FLOAT16
     * @param seed the same on each rank
     * @param communicator of the ranks that shard the model; closed after this
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, another rank has allocated the plan, or ranks have different
     *     parameters, as in {@link #allocate(ModelPlan, DType, long, ZeroStage, Communicator)}, or different configurations
     * @throws RankFailedException when another rank failed or did not come
     */
    public static FullySharded allocate(
            ModelPlan plan, DType dtype, long seed, FullyShardedConfig config, Communicator communicator) {
        Checks.given("config", config);
        return new ShardedAllocation(plan, dtype, seed, config)
                .on(ShardedRanks.of(Checks.given("communicator", communicator)), null);
    }

    /**
     * Allocates memory as {@link #allocate(ModelPlan, DType, long, ZeroStage, Communicator)} does, for one of several copies of the model
     * (hybrid sharding): the ranks along {@link MeshDimension#SHARD} and {@link MeshDimension#CONTEXT} shard a copy, those along {@link
     * MeshDimension#REPLICATE} have the same part of each copy. Weights are gathered, and gradients reduced and scattered, among the ranks
     * of a copy, which should have fast links; the sums of a part are then all-reduced along {@link MeshDimension#REPLICATE}.
     *
     * <p>The ranks shard the part of the model that is left after {@link MeshDimension#TENSOR}, which splits heads and columns, and {@link
     * MeshDimension#PIPELINE}, which splits stages.
     *
     * {@snippet file="dev/chagres/sharding/HybridShardedTest.java" region="hybrid"}
     *
     * @param plan padded by this call for the number of ranks of a copy; in a pipeline the plan of this rank's stages
     * @param mesh must stay open as long as this; each of its ranks makes this call
     * @throws IllegalArgumentException when the type is no float, or the plan is empty
     * @throws IllegalStateException when a parameter has memory already, another rank has allocated the plan, or ranks have different
     *     parameters, as in {@link #allocate(ModelPlan, DType, long, ZeroStage, Communicator)}, or different configurations
     * @throws RankFailedException when another rank failed or did not come
     */
    public static FullySharded allocate(ModelPlan plan, DType dtype, long seed, FullyShardedConfig config, Mesh mesh) {
        Checks.given("config", config);
        return new ShardedAllocation(plan, dtype, seed, config)
                .on(ShardedRanks.of(Checks.given("mesh", mesh), config.optimizer()), mesh);
    }

    /** Returns which state is sharded. */
    public ZeroStage stage() {
        return config.stage();
    }

    /** Returns in which memory weights are gathered: the value of the configuration, or {@code DEVICE} if NCCL could make no windows. */
    public WeightGather weightGather() {
        return gathers.made();
    }

    /**
     * Returns how gradients are reduced: the value of the configuration, or {@code REDUCE_SCATTER} if NCCL could make no windows.
     */
    public GradientReduction gradientReduction() {
        return gradients.made();
    }

    /**
     * Returns why NCCL made no windows though the configuration asks for them, so that {@link #weightGather} or {@link #gradientReduction} is
     * another one than the configuration's; null if these are the configuration's.
     */
    public @Nullable String whyNoWindows() {
        boolean made = weightGather() == config.weightGather() && gradientReduction() == config.gradientReduction();
        return made ? null : NoWindows.reason();
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
    void reading(Parameter parameter, GradientOwner writer) {
        if (reads == null) {
            super.reading(parameter, writer);
        } else {
            reads.read(parameter, writer);
        }
    }

    @Override
    RankFailedException explained(RankFailedException failed) {
        return sums.explained(failed);
    }

    @Override
    void gather(Quantizers quantizers) {
        if (weights != null && reads != null) {
            weights.gatherQuantized(quantizers, reads);
        }
    }

    @Override
    void writing(Parameter parameter) {
        gradients.write(parameter.group());
    }

    @Override
    void finish() {
        sums.finish();
    }

    @Override
    void restart() {
        steps.restart();
        sums.restart();
    }

    @Override
    void complete(int group) {
        sums.complete(group, isLast() ? MicroBatch.LAST : MicroBatch.EARLIER);
    }

    @Override
    void release(int group, WeightForm form) {
        if (weights != null) {
            weights.release(group, form);
        }
    }

    @Override
    void stepped() {
        steps.stepped();
        rewritten();
    }

    @Override
    void sumOfShards(Tensor values) {
        ranks.updating().allReduce(values, values, Reduction.SUM, stream);
    }

    @Override
    ShardRanks shardRanks() {
        return updating;
    }

    @Override
    void rewritten() {
        updated.gather();
        if (weights != null) {
            weights.changed();
        }
    }

    @Override
    void ensureEnqueues() {
        if (Inside.capture(stream) != null) {
            throw new CaptureException("FullySharded: a step with sharded weights or gradients cannot be captured;"
                    + " enqueue it, or train with DataParallel");
        }
    }

    /** Returns the bytes of weights and gradients on this rank: its parts, and buffers for whole groups. */
    public long byteSize() {
        return parameters.byteSize() + gradients.byteSize() + (weights == null ? 0 : weights.byteSize());
    }

    /**
     * Gathers the state that is needed to go on exactly, a group at a time, and passes it to {@code sink} tensor by tensor. Names and shapes
     * are those of {@link Parameters#state()} and {@link Optimizer#state()} of a model that is neither sharded nor split. Each rank calls it,
     * with the same optimizer's state; a rank of a pipeline gets its stages.
     *
     * @param optimizer of these parameters
     * @param sink called with each tensor on every rank; the tensor is valid until it returns
     * @throws IllegalArgumentException when the optimizer is that of other parameters
     * @throws IllegalStateException when this or the optimizer is closed
     * @throws RankFailedException when another rank failed or did not come
     */
    public void gatherState(Optimizer optimizer, BiConsumer<String, Tensor> sink) {
        ensureOpen();
        ensureOwn(optimizer);
        List<StateVector> vectors = optimizer.vectors();
        new GatheredState(parameters, ranks).all(vectors, Checks.given("sink", sink));
        optimizer.stepState().tensors().forEach(sink);
    }

    /** Returns the mesh of the ranks that train together; null if there is a single copy of the model. */
    @Override
    public @Nullable Mesh mesh() {
        return mesh;
    }

    /**
     * Waits on the host until all ranks have reduced this step's gradients and computed its norm; called last before the optimizer's step.
     * So a failure is either thrown before the step on all remaining ranks, or all of them make the step: {@link #shrink} needs that.
     *
     * @throws IllegalStateException when this is closed
     * @throws RankFailedException when another rank failed or did not come
     */
    public void awaitGradients() {
        ensureOpen();
        steps.await(() -> {
            gathers.communicator.check();
            gradients.check();
            ranks.check();
        });
        confirmAmaxes();
    }

    /** Returns how many steps the optimizer has taken since the ranks began, before {@link #shrink} and after. */
    public long completedSteps() {
        return steps.completed();
    }

    /**
     * Goes on with the copies of the model that have all their ranks, after a {@link RankFailedException}: each remaining rank calls this.
     * They agree on the remaining ranks; ranks of a copy that has lost a rank leave with an exception, the others shrink the mesh along
     * {@link MeshDimension#REPLICATE}. All of these have completed the same steps. This strategy is closed; the failed step is discarded,
     * and must be made again by the new number of ranks.
     *
     * {@snippet file="dev/chagres/sharding/HybridShrinkTraining.java" region="shrink"}
     *
     * @param optimizer of these parameters, which takes its steps after {@link #awaitGradients}
     * @return the strategy of the remaining ranks, which follows the same passes and keeps the parameters; its {@link #mesh()} is closed
     *     with it
     * @throws IllegalArgumentException when the optimizer is that of other parameters
     * @throws IllegalStateException when this is closed, no rank has failed, or a step was taken without {@link #awaitGradients}. Also when
     *     there is one copy of the model, or its layers, stages or tokens are split among ranks. Also when the optimizer's state is sharded
     *     among {@link OptimizerSharding#ALL_RANKS}, or weights are gathered in windows by ranks that are processes. Also when no complete
     *     copy is left: the text says which parts were lost
     * @throws RankFailedException when this rank's copy has lost a rank, or the others have gone on without this one
     */
    public FullySharded shrink(Optimizer optimizer) {
        return new ReplicaShrink(this, ranks, gathers, config, steps).shrink(optimizer);
    }

    boolean gathersQuantized() {
        return weights != null && weights.gathersQuantized();
    }

    /** Closes this without the parameters, which another strategy takes over. */
    void handOver() {
        ownsParameters = false;
        parameters.forgetGradients();
        discardAmaxes();
        close();
    }

    /** Gathers the weights of the last step again: a rank may have failed during the gather. */
    void gatherWeights() {
        updated.gatherWhole();
        communicator.synchronize(stream);
    }

    /** Takes part in steps from now on; closing this closes the parameters. */
    void begin() {
        parameters.adopt(norm);
        parameters.access().step(norm);
        join();
        ownsParameters = true;
    }

    /** Replaces {@code former}, whose parameters this takes over, with a new mesh that this owns. */
    void beginAfter(FullySharded former) {
        parameters.access().forget(former.norm);
        begin();
        ownsMesh = true;
    }

    /**
     * Returns which parts of the model were lost with failed ranks.
     *
     * @param ranks as {@link RankFailedException#ranks()} names them
     * @return which parts, of which parameters, and which ranks also have them
     * @throws IllegalArgumentException when there is no such rank
     */
    public String explainLoss(List<Integer> ranks) {
        return new LostShardReport(this, parameters, this.ranks, config).explain(Checks.given("ranks", ranks));
    }

    @Override
    public Part updatedBy(int rank) {
        return ranks.shard(ranks.place(rank), stage()).updated();
    }

    @Override
    public void checkMesh(Mesh mesh) {
        if (!mesh.shape().equals(ranks.shape())) {
            throw new IllegalArgumentException(
                    "mesh: expected the one that FullySharded.allocate was given (" + ranks.shape() + "), got " + mesh);
        }
    }

    @Override
    public Part weightsOf(int rank) {
        Part kept = ranks.shard(ranks.place(rank), stage()).weights();
        return kept == null ? new Part(0, 1) : kept;
    }

    @Override
    void loaded() {
        if (weights != null) {
            weights.changed();
        }
    }

    @Override
    public String explain() {
        return this + ": " + ranks.explain(config, gathersQuantized());
    }

    /** Also frees the parameters, which this has allocated, unless another strategy has taken them over. */
    @Override
    void free() {
        if (weights != null) {
            weights.close();
        }
        sums.close();
        steps.close();
        if (ownsParameters) {
            parameters.close();
        }
        norm.close();
        gathers.close();
        if (mesh != null && ownsMesh) {
            mesh.close();
        }
    }

    @Override
    public String toString() {
        Communicator copies = ranks.copies();
        return "ZeRO stage " + (stage().ordinal() + 1) + " on rank " + communicator.rank() + " of "
                + communicator.ranks() + (copies == null ? "" : ", in " + copies.ranks() + " copies")
                + gathers.explain() + explainReduction();
    }

    /** Describes how gradients are reduced; empty for NCCL's kernels. */
    private String explainReduction() {
        if (config.gradientReduction() == GradientReduction.REDUCE_SCATTER) {
            return "";
        }
        return gradientReduction() == GradientReduction.COPY_ENGINE
                ? ", gradients reduced by copy engines"
                : ", gradients reduced without windows, for NCCL made none: " + NoWindows.reason();
    }
}
