package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.Pass;
import dev.chagres.model.GroupPiece;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterShard;
import dev.chagres.model.ParameterShard.Extent;
import dev.chagres.model.ParameterUse;
import dev.chagres.model.Parameters;
import dev.chagres.model.PlacedGroup;
import dev.chagres.model.ShardedStep;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.AdamW;
import java.util.ArrayList;
import java.util.List;
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
public final class FullySharded implements AutoCloseable {
    private final ZeroStage stage;
    private final Parameters parameters;
    private final Communicator communicator;
    private final Stream stream;
    private final Communicator gathers;
    private final Communicator reductions;
    private final ShardedGradients gradients;
    /** Null where each rank has all weights. */
    private final @Nullable ShardedWeights weights;

    private final NormOverRanks norms;
    private final GroupProgress progress;
    private final ParameterUse use = new Use();
    private final Runnable atNextStep = this::endStep;
    private final Runnable atForgetting = this::beginStep;
    private final List<Pass> followed = new ArrayList<>();
    private long weightBytes;
    private boolean last;
    private boolean summed;
    private boolean closed;

    private FullySharded(ZeroStage stage, Parameters parameters, Communicator communicator) {
        this.stage = stage;
        this.parameters = parameters;
        this.communicator = communicator;
        stream = parameters.scope().stream();
        int rank = communicator.rank();
        gathers = communicator.split(0, rank, communicator.config().withName("weights"));
        reductions = communicator.split(0, rank, communicator.config().withName("gradients"));
        weights = stage == ZeroStage.THREE ? new ShardedWeights(parameters, gathers) : null;
        gradients = new ShardedGradients(parameters, reductions, stage);
        norms = new NormOverRanks(parameters.scope(), communicator);
        progress = new GroupProgress(parameters.sharing().groups().size(), this::complete, this::release);
        parameters.adopt(norms);
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
            parameters.sharing().step(made.new Step());
            parameters.sharing().observe(made.use);
            parameters.atNextStep(made.atNextStep);
            parameters.atForgetting(made.atForgetting);
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

    /** Returns the parameters, which this closes: optimizers and norms work on this rank's part of them. */
    public Parameters parameters() {
        return parameters;
    }

    /**
     * Gathers and reduces for the calls of {@code pass} from now on; a pass of evaluation, too, needs that in stage 3. One pass at a time
     * may have forward calls whose backward calls are to come.
     *
     * @throws IllegalArgumentException when it runs on another stream than the parameters'
     * @throws IllegalStateException when the pass is followed already, or this is closed
     */
    public void follow(Pass pass) {
        ensureOpen();
        if (Checks.given("pass", pass).stream() != stream) {
            throw new IllegalArgumentException("pass: expected one on the parameters' stream, got " + pass);
        }
        if (followed.contains(pass)) {
            throw new IllegalStateException("follow: expected a pass that is not followed yet, got " + pass);
        }
        pass.observeCalls(progress);
        followed.add(pass);
    }

    /**
     * Says, before its first layer, that the next micro-batch is this rank's last one of the step: in stages 1 and 2 its backward reduces
     * each group as soon as it is complete. Without this call {@link #sumGradients} reduces all.
     *
     * @throws IllegalStateException when the gradients were summed in this step, or this is closed
     */
    public void lastMicroBatch() {
        ensureOpen();
        if (summed) {
            throw new IllegalStateException(
                    "lastMicroBatch: expected before sumGradients, got it after; take the optimizer's step first");
        }
        progress.restart();
        last = true;
    }

    /**
     * Enqueues {@code labelled = sum over ranks of labelled}.
     *
     * @param labelled INT32 [1]: the labelled tokens of this rank, of all its micro-batches
     * @throws IllegalArgumentException when the type, the count or the device does not fit
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void sumOverRanks(Tensor labelled) {
        ensureOpen();
        Checks.vector(stream, "labelled", labelled, DType.INT32, 1);
        communicator.allReduce(labelled, labelled, Reduction.SUM, stream);
    }

    /**
     * Enqueues what is left of the sum of all ranks' gradients, after the last micro-batch's backward and before the norm and the
     * optimizer, which wait for all of it on the device.
     *
     * @throws IllegalStateException when they were summed since the last step, or after {@link #close()}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void sumGradients() {
        ensureOpen();
        if (summed) {
            throw new IllegalStateException("sumGradients: expected one call a step, got a second one; take the"
                    + " optimizer's step before, or call Parameters.forgetGradients");
        }
        ensureEnqueued();
        last = false;
        gradients.finish();
        summed = true;
    }

    private void complete(int group) {
        if (last || stage == ZeroStage.THREE) {
            gradients.complete(group);
        }
    }

    private void release(int group) {
        if (weights != null) {
            weights.release(group);
        }
    }

    private void endStep() {
        beginStep();
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
            Tensor own = views.view(vector, piece.weightOffset() + communicator.rank() * part, part);
            gathers.allGather(own, whole, stream);
        }
        weightBytes += piece.count() * piece.dtype().byteSize();
    }

    private void beginStep() {
        summed = false;
        last = false;
        progress.restart();
        gradients.restart();
    }

    private void ensureEnqueued() {
        if (Inside.capture(stream) != null) {
            throw new CaptureException(
                    "FullySharded: a step whose weights or gradients are shared out cannot be captured;"
                            + " enqueue it, or train with DataParallel");
        }
    }

    /** Returns the bytes of whole weights that were gathered since this was asked last. */
    public long takeGatheredBytes() {
        long bytes = weightBytes + (weights == null ? 0 : weights.takeGatheredBytes());
        weightBytes = 0;
        return bytes;
    }

    /** Returns the bytes of whole gradients that were reduced since this was asked last. */
    public long takeReducedBytes() {
        return gradients.takeReducedBytes();
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

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the " + this + " is closed");
        }
    }

    /** Says what is shared out, and how it travels. */
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

    /**
     * Frees the memory of the parameters and all that belongs to them. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        Inside.state(stream).ensureCloses();
        closed = true;
        for (Pass pass : followed) {
            pass.forget(progress);
        }
        parameters.sharing().forget(use);
        parameters.forget(atNextStep);
        parameters.forget(atForgetting);
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

    /** Brings weights and memory for gradients before they are used. */
    private final class Use implements ParameterUse {
        @Override
        public void reading(Parameter parameter) {
            ShardedWeights shared = weights;
            if (shared != null && !progress.isInCall()) {
                throw new IllegalStateException("weight of " + parameter.name()
                        + ": shared out among " + communicator.ranks()
                        + " ranks, it is whole in layers' calls of a pass that FullySharded follows alone; call follow(pass),"
                        + " or gatherState");
            }
            if (progress.uses(parameter.group()) && shared != null) {
                ensureEnqueued();
                shared.use(parameter.group(), progress.direction());
            }
        }

        @Override
        public void writing(Parameter parameter) {
            ensureEnqueued();
            if (summed) {
                throw new IllegalStateException(
                        "gradient of " + parameter.name()
                                + ": summed over the ranks already, got another backward call; take the optimizer's step first");
            }
            gradients.write(parameter.group());
        }

        @Override
        public String toString() {
            return FullySharded.this.toString();
        }
    }

    /** What norm and optimizer need of the other ranks. */
    private final class Step implements ShardedStep {
        @Override
        public void ensureSummed() {
            if (!summed) {
                throw new IllegalStateException(
                        "gradients: expected the sum over " + communicator.ranks()
                                + " ranks, got none in this step; call sumGradients() before the norm and the optimizer's step");
            }
        }

        @Override
        public void normOverRanks(Tensor norm, Tensor skip) {
            norms.compute(norm, skip);
        }
    }
}
