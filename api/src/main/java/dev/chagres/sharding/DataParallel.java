package dev.chagres.sharding;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.AdamW;
import java.util.List;

/**
 * Data-parallel training: each rank has the whole model, and the gradients of all ranks are summed before the optimizer's step, so that
 * the ranks' weights stay the same.
 *
 * <p>Gradients are summed in buckets, on a stream and with a communicator of their own. After {@link #lastMicroBatch} a bucket is summed
 * as soon as backward has completed its groups, while backward goes on below them; {@link #sumGradients} sums what is left. The
 * order is the same on each rank: buckets of the groups that were declared last come first. A rank without sequences takes part with
 * nothing.
 *
 * {@snippet file="dev/chagres/layer/DataParallelTest.java" region="parallel"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.nn.parallel.DistributedDataParallel}.
 */
public final class DataParallel extends Strategy {
    /** Of so many bytes and more a collective reaches the bandwidth of NVLink. */
    private static final long BUCKET_BYTES = 32L << 20;

    private final GradientBuckets buckets;

    private DataParallel(Parameters parameters, Communicator communicator, long bucketBytes) {
        super(parameters, communicator);
        buckets = new GradientBuckets(parameters, communicator, bucketBytes, bytes);
    }

    /**
     * Checks that all ranks have the same parameters, and gives all of them the weights of rank 0. Each rank calls it. Load states
     * of weights and optimizer after this, the same on each rank: the weights are written here, so AdamW makes its FP32 masters anew
     * at the next step.
     *
     * @param parameters closed after this
     * @param communicator of the ranks that hold copies of the model; closed after this
     * @throws IllegalArgumentException when the parameters lie on another device than the communicator's
     * @throws IllegalStateException when ranks have other parameters: other names, shapes, types, or others frozen; or when another
     *     strategy has the parameters
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static DataParallel of(Parameters parameters, Communicator communicator) {
        return of(parameters, communicator, BUCKET_BYTES);
    }

    /**
     * Does what {@link #of(Parameters, Communicator)} does, with buckets of another size.
     *
     * @param bucketBytes gradients of neighbouring groups are summed as one until they have this many bytes; at least 1, the same
     *     on each rank
     * @throws IllegalArgumentException when the parameters lie on another device than the communicator's, or the size is below 1
     * @throws IllegalStateException when ranks have other parameters, as in {@link #of(Parameters, Communicator)}, or another size;
     *     or when another strategy has the parameters
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static DataParallel of(Parameters parameters, Communicator communicator, long bucketBytes) {
        if (bucketBytes < 1) {
            throw new IllegalArgumentException("bucketBytes: expected at least 1, got " + bucketBytes);
        }
        Stream stream = Checks.given("parameters", parameters).scope().stream();
        if (stream.device() != Checks.given("communicator", communicator).device()) {
            throw new IllegalArgumentException("parameters: expected those of " + communicator.device()
                    + ", got some of " + Checks.other(stream.device(), communicator.device()));
        }
        parameters.sharing().ensureUnshared();
        SameParameters.ensure(parameters, communicator, 0, "bucketBytes", bucketBytes);
        DataParallel made = new DataParallel(parameters, communicator, bucketBytes);
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
    void finish() {
        buckets.finish();
    }

    @Override
    void restart() {
        buckets.restart();
    }

    @Override
    ShardedState stateOf(AdamW optimizer, State others) {
        return new ShardedState(this, List.of(), State.of(parameters.state(), optimizer.state(), others));
    }

    /** Says which buckets are summed, in which order, and how many of them while backward ran in this step. */
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
