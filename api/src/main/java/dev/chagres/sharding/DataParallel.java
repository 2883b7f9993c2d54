package dev.chagres.sharding;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.ranks.SameParameters;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.CallMode;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.Optimizer;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterShard.Part;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Data-parallel training: each rank has the whole model, and the gradients of all ranks are summed before the optimizer's step, so that
 * the ranks' weights stay the same.
 *
 * <p>Gradients are summed in buckets, on a separate stream and communicator. After {@link #lastMicroBatch} a bucket is summed as soon as
 * backward has completed its groups, while backward of earlier layers goes on; {@link #sumGradients} sums the remaining ones. The order is
 * the same on each rank: buckets of the groups that were declared last come first. A rank without sequences makes the same calls without
 * micro-batches.
 *
 * {@snippet file="dev/chagres/sharding/DataParallelTest.java" region="parallel"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.nn.parallel.DistributedDataParallel}.
 */
public final class DataParallel extends Strategy {
    private static final long NO_STEP = -1;

    private final GradientBuckets buckets;
    private final DataParallelConfig config;
    private long steps;
    /** Whether this step's sums are known to have succeeded, and whether an earlier step was taken without knowing that. */
    private boolean awaited;

    private boolean unawaited;

    private DataParallel(Parameters parameters, Communicator communicator, DataParallelConfig config) {
        super(parameters, communicator);
        this.config = config;
        buckets = new GradientBuckets(parameters, communicator, config, bytes);
    }

    /**
     * Checks that all ranks have the same parameters, and gives all of them the weights of rank 0. Each rank calls it. Load states of
     * weights and optimizer after this, the same on each rank: this call writes the weights, so AdamW copies them to its masters again at
     * the next step.
     *
     * @param parameters closed after this
     * @param communicator of the ranks that hold copies of the model; closed after this
     * @throws IllegalArgumentException when the parameters lie on another device than the communicator's
     * @throws IllegalStateException when ranks have different parameters: names, shapes, types, or which are frozen; or when another
     *     strategy has the parameters
     * @throws RankFailedException when another rank failed or did not come
     */
    public static DataParallel of(Parameters parameters, Communicator communicator) {
        return of(parameters, communicator, DataParallelConfig.standard());
    }

    /**
     * Like {@link #of(Parameters, Communicator)}, with gradients summed as {@code config} says, which must be the same on each rank.
     *
     * @throws IllegalArgumentException when the parameters lie on another device than the communicator's
     * @throws IllegalStateException when ranks have different parameters, as in {@link #of(Parameters, Communicator)}, or different
     *     configurations; or when another strategy has the parameters
     * @throws RankFailedException when another rank failed or did not come
     */
    public static DataParallel of(Parameters parameters, Communicator communicator, DataParallelConfig config) {
        Checks.given("config", config);
        Stream stream = Checks.given("parameters", parameters).scope().stream();
        if (stream.device() != Checks.given("communicator", communicator).device()) {
            throw new IllegalArgumentException("parameters: expected those of " + communicator.device()
                    + ", got some of " + Checks.other(stream.device(), communicator.device()));
        }
        parameters.access().ensureUnshared();
        SameParameters.ensure(parameters, communicator, 0, "bucketBytes", config.bucketBytes());
        SameParameters.ensure(parameters, communicator, 0, "reduceType", config.reduceType());
        DataParallel made = new DataParallel(parameters, communicator, config);
        try {
            Communicator.group(() -> {
                for (Parameter parameter : parameters.all()) {
                    Tensor weight = parameter.weight();
                    communicator.broadcast(weight, weight, 0, stream);
                }
            });
            parameters.changed();
            made.join();
            return made;
        } catch (RuntimeException | Error failure) {
            made.free();
            throw failure;
        }
    }

    /**
     * Waits on the host until this step's sums are done, after {@link #sumGradients}. So a failure is thrown before the optimizer's step,
     * and the weights are unchanged: {@link #shrink} needs that.
     *
     * @throws IllegalStateException when this is closed
     * @throws RankFailedException when another rank failed or did not come
     */
    public void awaitGradients() {
        ensureOpen();
        buckets.synchronize();
        confirmAmaxes();
        awaited = true;
        unawaited = false;
    }

    /** Returns how many steps the optimizer has taken since the ranks began, before {@link #shrink} and after. */
    public long completedSteps() {
        return steps;
    }

    /**
     * Goes on without ranks that have failed, after a {@link RankFailedException}: each remaining rank calls this. They agree on the
     * remaining ranks, shrink the communicator, and all go on from the newest step that one of them has completed: ranks that have not
     * completed it get its weights, moments and {@code others}. This strategy is closed; the failed step is discarded, and must be made
     * again by the new number of ranks.
     *
     * {@snippet file="dev/chagres/sharding/ShrinkTraining.java" region="shrink"}
     *
     * @param optimizer of these parameters, which takes its steps after {@link #awaitGradients}
     * @param others other state that a step changes: states of quantizers, of a loss scaler, your own numbers
     * @return the strategy of the remaining ranks, which follows the same passes; its {@link #communicator()} is closed with the device
     * @throws IllegalArgumentException when the optimizer is that of other parameters
     * @throws IllegalStateException when this is closed, layers, stages or tokens are split among ranks, or a step was taken without {@link
     *     #awaitGradients}; when no rank has failed, or no remaining rank has a whole state
     * @throws RankFailedException when the others have gone on without this one, or may have: see {@link Agreement#of}
     */
    public DataParallel shrink(Optimizer optimizer, State... others) {
        ensureShrinks(optimizer);
        State state = State.of(parameters.state(), optimizer.state(), State.of(others));
        state.ensureNoneQuantized();
        var successor = successor();
        List<State> scales = reducedScales();
        Communicator from = communicator;
        while (true) {
            Agreement left = Agreement.of(from, steps);
            ensureLeft(left);
            DataParallel next = null;
            try {
                stream.synchronize();
                from = from.shrink(from.config(), left.excluded());
                parameters.forgetGradients();
                buckets.discard();
                discardAmaxes();
                close();
                next = new DataParallel(parameters, from, config);
                next.steps = Collections.max(left.values());
                // If this fails half-way, the state of a rank that is behind belongs to no step.
                steps = steps < next.steps ? NO_STEP : steps;
                StateBroadcast newest = new StateBroadcast(from, left.placeOfLargest(), stream);
                newest.toThoseBehind(state, scales, behind(left));
                // Ranks that reduce scales must go on with the same, also if these are not in others.
                scales.forEach(newest::toAll);
                steps = next.steps;
                next.join();
                successor.accept(next);
                return next;
            } catch (RuntimeException failure) {
                if (next != null) {
                    next.free();
                }
                if (!(failure instanceof RankFailedException)) {
                    throw failure;
                }
                // Another rank has failed: the remaining ranks agree again.
            }
        }
    }

    /** Returns those that have not completed the newest step, as numbered in the shrunk communicator. */
    private static List<Integer> behind(Agreement left) {
        long newest = Collections.max(left.values());
        return IntStream.range(0, left.values().size())
                .filter(rank -> left.values().get(rank) < newest)
                .boxed()
                .toList();
    }

    private static void ensureLeft(Agreement left) {
        if (left.excluded().length == 0) {
            throw new IllegalStateException("shrink: expected a rank that has failed, got all " + left.of()
                    + " ranks; the communicator is revoked");
        }
        if (Collections.max(left.values()) == NO_STEP) {
            throw new IllegalStateException(
                    "shrink: expected a rank with the whole state of a step, got none, for others"
                            + " failed while they sent it; start again from a saved state");
        }
    }

    private void ensureShrinks(Optimizer optimizer) {
        ensureOpen();
        Inside.state(stream).ensureNotCapturing("shrink");
        Inside.state(stream).ensureNotGrouping("shrink");
        ensureOwn(optimizer);
        if (parameters.tensorParallel().isSplit()) {
            throw new IllegalStateException(
                    "shrink: expected ranks with whole layers, got " + parameters.tensorParallel()
                            + ", of which shards were lost with a rank" + LostLayers.explain(parameters, communicator));
        }
        if (parameters.access().isStaged()
                || parameters.access().contextParallel().isSplit()) {
            throw new IllegalStateException(
                    "shrink: expected ranks that each compute the whole model, got stages of a pipeline or parts of"
                            + " tokens, which need the failed rank"
                            + LostLayers.explain(parameters, communicator));
        }
        if (unawaited) {
            throw new IllegalStateException(
                    "shrink: expected awaitGradients() before each step of the optimizer, got a"
                            + " step without it, whose gradients may be those of a sum that failed; start again from a saved state");
        }
    }

    @Override
    void stepped() {
        steps++;
        unawaited |= !awaited;
        awaited = false;
    }

    @Override
    public boolean needsEqualMicroBatches() {
        return false;
    }

    @Override
    void complete(int group) {
        if (isLast()) {
            buckets.complete(group);
        }
    }

    @Override
    boolean isSummed(int group) {
        return buckets.isSummed(group);
    }

    @Override
    void ensureEnqueues() {
        if (Inside.capture(stream) != null && communicator.config().callMode() == CallMode.NON_BLOCKING) {
            throw new CaptureException("DataParallel: expected a communicator with callMode BLOCKING for a step that is"
                    + " captured, got NON_BLOCKING in " + communicator + "; enqueue the step, or open the communicator"
                    + " with CommunicatorConfig.withCallMode(CallMode.BLOCKING)");
        }
    }

    @Override
    void finish() {
        awaited = false;
        buckets.finish();
    }

    @Override
    void restart() {
        buckets.restart();
    }

    @Override
    public Part updatedBy(int rank) {
        return new Part(0, 1);
    }

    @Override
    public Part weightsOf(int rank) {
        return new Part(0, 1);
    }

    /** Returns which buckets are summed, in which order, and how many of them during backward in this step. */
    @Override
    public String explain() {
        return "gradients summed over " + communicator.ranks() + " ranks in " + buckets.count()
                + (buckets.count() == 1 ? " bucket" : " buckets") + ", in this order; " + buckets.overlapped()
                + (buckets.overlapped() == 1 ? " was" : " were") + " sent while backward was running:"
                + buckets.explain();
    }

    @Override
    void free() {
        buckets.close();
    }

    @Override
    public String toString() {
        return "data-parallel training on rank " + communicator.rank() + " of " + communicator.ranks() + ", "
                + buckets.count() + (buckets.count() == 1 ? " bucket" : " buckets");
    }
}
