package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.ranks.SameOptimizers;
import dev.chagres.mesh.Mesh;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import dev.chagres.optim.Optimizer;
import dev.chagres.parameter.GradientOwner;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.ShardRanks;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.recipe.Quantizers;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * How ranks that train one model together split it and sum their gradients. Each rank has its part of a step's sequences.
 *
 * <p>{@code gradient = sum over ranks r of gradient of rank r}. The sum is the gradient of one loss, the mean over all labelled tokens,
 * when each rank divides by their number over all ranks: {@link #sumOverRanks} adds the numbers up, and {@link
 * dev.chagres.layer.CrossEntropy#forward(Tensor, Tensor, Tensor, dev.chagres.pass.Pass)} takes the sum as divisor. With rank r's pass
 * seeded as micro-batch r, N ranks compute the same as one rank that accumulates N micro-batches.
 *
 * <p>A step of every strategy:
 *
 * {@snippet file="dev/chagres/sharding/RankedRun.java" region="step"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.nn.parallel} and {@code torch.distributed.fsdp}.
 */
public abstract sealed class Strategy implements AutoCloseable permits DataParallel, FullySharded {
    final Parameters parameters;
    /** All ranks. */
    final Communicator communicator;

    final Stream stream;
    final GradientReadiness progress;
    final ByteCounts bytes = new ByteCounts();
    private final StepGuard order = new StepGuard(this);
    private final Runnable atNextStep = this::endStep;
    private final Runnable atForgetting = this::beginStep;
    private final List<Pass> followed = new ArrayList<>();
    private final AmaxOverRanks amaxes;
    private final SameOptimizers optimizers;
    private boolean closed;

    Strategy(Parameters parameters, Communicator communicator) {
        this.parameters = parameters;
        this.communicator = communicator;
        stream = parameters.scope().stream();
        amaxes = new AmaxOverRanks(parameters, communicator, bytes);
        optimizers = SameOptimizers.ofWeights(parameters, communicator);
        progress = new GradientReadiness(this, parameters.access().groups().size(), this::complete, this::release);
    }

    /** Takes part in steps from now on. */
    final void join() {
        parameters.access().observe(order);
        parameters.atNextStep(atNextStep);
        parameters.atForgetting(atForgetting);
    }

    /** Returns the parameters; optimizers and norms work on this rank's part of them. */
    public final Parameters parameters() {
        return parameters;
    }

    /** Returns the communicator of all ranks that have the same layers. */
    public Communicator communicator() {
        return communicator;
    }

    /** Returns the mesh of the ranks that train together, where this was given one; else null. */
    public @Nullable Mesh mesh() {
        return null;
    }

    /**
     * Returns whether all ranks must have the same number of micro-batches in a step, because ranks communicate in each. A rank that has no
     * sequences left then computes a token without a label.
     */
    public abstract boolean needsEqualMicroBatches();

    /**
     * Communicates for the calls of {@code pass} from now on. If weights are sharded, evaluation passes must be followed, too, and each of
     * {@link PipelineParallel#passes} and {@link PipelineParallel#evaluationPass}. Except in a pipeline, only one pass may be between
     * forward calls and their backward calls at a time.
     *
     * @throws IllegalArgumentException when it runs on another stream than the parameters'
     * @throws IllegalStateException when the pass is followed already, or this is closed
     */
    public final void follow(Pass pass) {
        ensureOpen();
        if (Checks.given("pass", pass).stream() != stream) {
            throw new IllegalArgumentException("pass: expected one on the parameters' stream, got " + pass);
        }
        if (followed.contains(pass)) {
            throw new IllegalStateException("follow: expected a pass that is not followed yet, got " + pass);
        }
        progress.follow(pass);
        followed.add(pass);
    }

    /**
     * Announces, before its first layer, that the next micro-batch is this rank's last one of the step: gradients are then summed as soon
     * as backward has completed them, while backward of earlier layers goes on. Without this call {@link #sumGradients} sums all gradients. Do
     * not call it while several passes are in use at once.
     *
     * <p>A further micro-batch of the step is refused in backward, since its gradients would miss the sum. Only where each micro-batch is
     * summed anyway, as {@link GradientSync#EACH_MICRO_BATCH} says, and there is a single copy of the model, it is computed as any other, and
     * the gradients are right.
     *
     * @throws IllegalStateException when no pass is followed, a layer of the micro-batch was called, the gradients were summed in this
     *     step, or this is closed
     */
    public final void lastMicroBatch() {
        ensureOpen();
        order.ensureBeforeLast(followed);
        progress.restart();
        order.last();
    }

    /**
     * Enqueues {@code labelled = sum over ranks of labelled}.
     *
     * @param labelled INT32 [1]: the labelled tokens of this rank, of all its micro-batches
     * @throws IllegalArgumentException when the type, the count or the device does not fit
     * @throws IllegalStateException when this is closed
     * @throws RankFailedException when another rank failed or did not come
     */
    public final void sumOverRanks(Tensor labelled) {
        ensureOpen();
        Checks.vector(stream, "labelled", labelled, DType.INT32, 1);
        try {
            communicator.allReduce(labelled, labelled, Reduction.SUM, stream);
        } catch (RankFailedException failed) {
            throw explained(failed);
        }
    }

    /**
     * Enqueues the remaining sums of all ranks' gradients. Call it after the last micro-batch's backward and before the norm and the
     * optimizer, which wait for the sums on the device. Gradients that no backward pass of this rank has written count as 0. The first
     * call, and the second one if a rank had no optimizer before, compare the settings of the ranks' optimizers, and wait for the result.
     *
     * @throws IllegalStateException when they were summed since the last step, this is closed, or inside {@link Communicator#group}. Also
     *     when ranks that communicate in each micro-batch have computed different numbers of them. Also, on every rank, when optimizers of
     *     two ranks have different settings (betas, epsilon, decay, types, or groups)
     * @throws RankFailedException when another rank failed or did not come
     */
    public final void sumGradients() {
        ensureOpen();
        Inside.state(stream).ensureNotGrouping("sumGradients");
        order.ensureUnsummed();
        ensureEnqueues();
        parameters.gradients(); // refuses closed parameters
        order.summing();
        finish();
        ensureSameOptimizers();
        order.summed();
    }

    private void ensureSameOptimizers() {
        IllegalStateException difference;
        try {
            difference = optimizers.difference();
        } catch (RankFailedException failed) {
            throw explained(failed);
        }
        if (difference != null) {
            throw difference;
        }
    }

    /**
     * From now on gives all ranks the same scales of {@code quantizers}: the amaxes of a step are reduced at its end over the ranks in one
     * call, and in further calls over ranks that split layers and over the ranks of a pipeline. With sharded weights, those that products
     * read in eight bits are gathered in eight bits from now on. Each rank calls it.
     *
     * <p>Source: TE's {@code amax_reduction_group}.
     *
     * @param quantizers of the parameters
     * @throws IllegalArgumentException when they belong to other parameters
     * @throws IllegalStateException when they are closed, reduced already, or this is closed
     */
    public final void reduceAmax(Quantizers quantizers) {
        ensureOpen();
        if (Checks.given("quantizers", quantizers).parameters() != parameters) {
            throw new IllegalArgumentException(
                    "quantizers: expected those of this strategy's parameters, got " + quantizers + " of others");
        }
        amaxes.add(quantizers);
        try {
            gather(quantizers);
        } catch (RuntimeException | Error failure) {
            amaxes.remove(quantizers);
            throw failure;
        }
    }

    /** Returns the bytes that each collective has moved since the last call; those of {@link #sumOverRanks} and of norms do not count. */
    public final CollectiveBytes takeBytes() {
        return bytes.take();
    }

    /** Returns which state is sharded, and how gradients and weights are communicated. */
    public abstract String explain();

    /** Returns an action that gives the passes and quantizers of this strategy to another one, once this one is closed. */
    final Consumer<Strategy> successor() {
        List<Pass> passes = List.copyOf(followed);
        List<Quantizers> quantizers = amaxes.open();
        return next -> {
            passes.forEach(next::follow);
            quantizers.forEach(next::reduceAmax);
        };
    }

    /** All ranks are known to have come to a sum of this step: the amaxes of the step before are reduced. */
    final void confirmAmaxes() {
        amaxes.confirm();
    }

    /** Enqueues scales of this rank's own amaxes in place of those whose reduction may have failed with a rank. */
    final void discardAmaxes() {
        amaxes.discard();
    }

    /** Returns the scales that are reduced over the ranks. */
    final List<State> reducedScales() {
        return amaxes.states();
    }

    final boolean isLast() {
        return order.isLast();
    }

    /** Checks that this is open, and that the calling thread has the device. */
    public final void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the " + this + " is closed");
        }
        Inside.state(stream).ensureCurrent(); // Before a call of another thread changes anything.
    }

    /** Checks that an optimizer updates the parameters of this strategy. */
    final void ensureOwn(Optimizer optimizer) {
        if (Checks.given("optimizer", optimizer).parameters() != parameters) {
            throw new IllegalArgumentException(
                    "optimizer: expected that of this strategy's parameters, got that of others: " + optimizer);
        }
    }

    /** Called when weights were loaded, by whichever call: discards values that were derived from the old weights and gradients. */
    final void stateLoaded() {
        beginStep();
        loaded();
    }

    private void beginStep() {
        order.restart();
        progress.restart();
        restart();
    }

    private void endStep() {
        beginStep();
        stepped();
    }

    /** Called when no later backward call of the micro-batch writes gradients of {@code group}. */
    abstract void complete(int group);

    /** From now on gathers in eight bits the weights that these quantizers cast. */
    void gather(Quantizers quantizers) {}

    /** Called when a call has enqueued all reads of weights of {@code group} in this form. */
    void release(int group, WeightForm form) {}

    /** Returns whether gradients of {@code group} were summed in this step, so that no backward call may add to them. */
    abstract boolean isSummed(int group);

    /** Called when a call is about to read {@code parameter}, whose gradient {@code writer} writes. */
    void reading(Parameter parameter, GradientOwner writer) {
        progress.uses(parameter.group(), WeightForm.UNSHARDED, writer);
    }

    /** Called when a backward call is about to write the gradient of {@code parameter}. */
    void writing(Parameter parameter) {}

    /** Throws while a stream captures, if the work of this strategy cannot be part of a graph. */
    void ensureEnqueues() {}

    /** Returns {@code failed}, with the likely reason if this strategy knows one. */
    RankFailedException explained(RankFailedException failed) {
        return failed;
    }

    /** Enqueues the remaining sums. */
    abstract void finish();

    /** Called when a step begins, or when its gradients are discarded. */
    abstract void restart();

    /** For checkpoints: returns the part of the gradients and of the optimizer's state that a rank of the mesh keeps. */
    public abstract Part updatedBy(int rank);

    /** For checkpoints: returns the part of the weights that a rank of the mesh keeps. */
    public abstract Part weightsOf(int rank);

    /**
     * For checkpoints: checks that {@code mesh} numbers its ranks as {@link #updatedBy} and {@link #weightsOf} do.
     *
     * @throws IllegalArgumentException when it is another one
     */
    public void checkMesh(Mesh mesh) {}

    /** Called when each rank has loaded its own weights. */
    void loaded() {}

    /** Enqueues the sum of {@code values} over the ranks whose shards form what is updated. */
    void sumOfShards(Tensor values) {}

    /** Returns the ranks whose shards form what is updated; null where each updates all. */
    @Nullable
    ShardRanks shardRanks() {
        return null;
    }

    /** Called when an optimizer has written other weights, outside of a step. */
    void rewritten() {}

    /** Called when an optimizer has updated the weights. */
    void stepped() {}

    /** Frees everything that this owns. */
    abstract void free();

    /**
     * Stops following passes and parameters, and frees everything that this owns. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    @Override
    public final void close() {
        if (closed) {
            return;
        }
        Inside.state(stream).ensureCloses();
        closed = true;
        followed.forEach(pass -> pass.calls().forget(progress));
        amaxes.end();
        parameters.access().forget(order);
        parameters.forget(atNextStep);
        parameters.forget(atForgetting);
        free();
    }
}
