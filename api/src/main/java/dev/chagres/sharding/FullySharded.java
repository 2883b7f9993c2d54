package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard;
import dev.chagres.model.ParameterShard.Extent;
import dev.chagres.model.Parameters;
import dev.chagres.model.PlacedGroup;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.AdamW;
import java.util.Map;
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
    private final ZeroStage stage;
    private final Communicator gathers;
    private final Communicator reductions;
    private final ShardedGradients gradients;
    /** Null where each rank has all weights. */
    private final @Nullable ShardedWeights weights;

    private FullySharded(ZeroStage stage, Parameters parameters, Communicator communicator) {
        super(parameters, communicator);
        this.stage = stage;
        int rank = communicator.rank();
        gathers = communicator.split(0, rank, communicator.config().withName("weights"));
        reductions = communicator.split(0, rank, communicator.config().withName("gradients"));
        weights = stage == ZeroStage.THREE ? new ShardedWeights(parameters, gathers, bytes) : null;
        gradients = new ShardedGradients(parameters, reductions, stage, bytes);
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
        Device device = Checks.given("communicator", communicator).device();
        Extent extent = Checks.given("stage", stage) == ZeroStage.THREE ? Extent.PART : Extent.WHOLE;
        Checks.given("plan", plan).padGroups(communicator.ranks());
        ParameterShard shard = new ParameterShard(communicator.rank(), communicator.ranks(), extent);
        Parameters parameters = Parameters.allocate(device, plan, dtype, seed, shard);
        try {
            FullySharded made = new FullySharded(stage, parameters, communicator);
            SameParameters.ensure(parameters, communicator, seed, "stage", stage.ordinal() + 1L);
            NormOverRanks norms = new NormOverRanks(parameters.scope(), communicator);
            parameters.adopt(norms);
            parameters.sharing().step(norms);
            made.join();
            return made;
        } catch (RuntimeException | Error failure) {
            parameters.close();
            throw failure;
        }
    }

    /** Returns what is shared out. */
    public ZeroStage stage() {
        return stage;
    }

    /** {@inheritDoc} True in stage 3. */
    @Override
    public boolean needsEqualMicroBatches() {
        return stage == ZeroStage.THREE;
    }

    @Override
    boolean isSummed(int group) {
        return gradients.isSummed(group);
    }

    @Override
    void reading(Parameter parameter) {
        ShardedWeights shared = weights;
        if (shared != null && !progress.isInCall()) {
            throw new IllegalStateException("weight of " + parameter.name()
                    + ": shared out among " + communicator.ranks()
                    + " ranks, it is whole in layers' calls of a pass that FullySharded follows alone; call follow(pass),"
                    + " or gatherState");
        }
        if (progress.uses(parameter.group()) && shared != null) {
            ensureEnqueues();
            shared.use(parameter.group(), progress.direction());
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
        if (isLast() || stage == ZeroStage.THREE) {
            gradients.complete(group);
        }
    }

    @Override
    void release(int group) {
        if (weights != null) {
            weights.release(group);
        }
    }

    @Override
    void stepped() {
        if (weights != null) {
            weights.changed();
            return;
        }
        Communicator.group(() -> {
            for (PlacedGroup group : parameters.sharing().groups()) {
                for (GroupPiece piece : group.pieces()) {
                    if (piece.isTrained()) {
                        gather(piece);
                    }
                }
            }
        });
    }

    /** Gathers what each rank has updated of whole weights, in place. */
    private void gather(GroupPiece piece) {
        Tensor vector = parameters.sharing().vector(piece.dtype());
        long part = piece.count() / communicator.ranks();
        try (Scope views = Inside.scratch(stream).open()) {
            Tensor whole = views.view(vector, piece.weightOffset(), piece.count());
            bytes.allGather(whole);
            Tensor own = views.view(vector, piece.weightOffset() + communicator.rank() * part, part);
            gathers.allGather(own, whole, stream);
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
     * Parameters#state()} and {@link AdamW#state()} have of a model that is not shared out. Each rank calls it, with the same optimizer's state.
     *
     * @param optimizer of these parameters
     * @param sink is handed each tensor on every rank, until it returns
     * @throws IllegalStateException when this or the optimizer is closed, or its masters are remainders
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void gatherState(AdamW optimizer, BiConsumer<String, Tensor> sink) {
        ensureOpen();
        Map<String, Tensor> vectors = Checks.given("optimizer", optimizer).vectors();
        Checks.given("sink", sink);
        GatheredState state = new GatheredState(parameters, communicator);
        for (PlacedGroup group : parameters.sharing().groups()) {
            for (GroupPiece piece : group.pieces()) {
                state.weights(group, piece, sink);
                if (piece.isTrained()) {
                    vectors.forEach((ending, vector) -> {
                        if (!ending.equals(".master") || piece.dtype() != DType.FLOAT32) {
                            state.vector(group, piece, ending, vector, sink);
                        }
                    });
                }
            }
        }
    }

    @Override
    public String explain() {
        String both = "gradients reduced and scattered group by group on a stream of their own, ";
        return switch (stage) {
            case ONE -> this + ": " + both + "from memory for all; weights gathered after the step";
            case TWO -> this + ": " + both + "from memory for two groups of each size; weights gathered after the step";
            case THREE ->
                this + ": " + both + "from memory for two groups of each size; weights gathered group by group"
                        + " on another stream before their layers run, the next group's meanwhile";
        };
    }

    /** Frees the parameters, too: this has made them. */
    @Override
    void free() {
        if (weights != null) {
            weights.close();
        }
        gradients.close();
        parameters.close();
        reductions.close();
        gathers.close();
    }

    @Override
    public String toString() {
        return "ZeRO stage " + (stage.ordinal() + 1) + " on rank " + communicator.rank() + " of "
                + communicator.ranks();
    }
}
