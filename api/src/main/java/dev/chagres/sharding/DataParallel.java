package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.layer.Pass;
import dev.chagres.model.Parameter;
import dev.chagres.model.ParameterUse;
import dev.chagres.model.Parameters;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import org.jspecify.annotations.Nullable;

/**
 * Data-parallel training: each rank has the whole model and its part of a step's sequences, and the gradients of all ranks are summed
 * before the optimizer's step, so that the ranks' weights stay the same.
 *
 * <p>{@code gradient = sum over ranks r of gradient of rank r}. The sum is the gradient of one loss, the mean over all labelled tokens,
 * when each rank divides by their number over all ranks: {@link #sumOverRanks} adds those up, and {@link
 * dev.chagres.layer.CrossEntropy#forward(Tensor, Tensor, Tensor, dev.chagres.layer.Pass)} takes the sum as divisor. With rank r's pass
 * seeded as micro-batch r, N ranks compute what one rank computes that accumulates N micro-batches.
 *
 * <p>Gradients are summed in buckets, on a stream and with a communicator of their own. After {@link #lastMicroBatch} a bucket is summed
 * as soon as backward has completed its groups, while backward goes on below them; {@link #sumGradients} sums what is left. The
 * order is the same on each rank: buckets of the groups that were declared last come first.
 *
 * {@snippet file="dev/chagres/layer/DataParallelTest.java" region="step"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.nn.parallel.DistributedDataParallel}.
 */
public final class DataParallel implements AutoCloseable {
    /** Of so many bytes and more a collective reaches the bandwidth of NVLink. */
    private static final long BUCKET_BYTES = 32L << 20;

    private final Parameters parameters;
    private final Communicator communicator;
    private final Stream stream;
    private final Runnable atNextStep = this::begin;
    private final GradientBuckets buckets;
    private final GroupProgress progress;
    private final ParameterUse use = new Use();
    /** The pass of the step's last micro-batch, from {@link #lastMicroBatch} on. */
    private @Nullable Pass last;

    /** Whether backward has written gradients since the step began. */
    private boolean written;

    private boolean summed;
    private boolean closed;

    private DataParallel(Parameters parameters, Communicator communicator, GradientBuckets buckets) {
        this.parameters = parameters;
        this.communicator = communicator;
        this.buckets = buckets;
        progress = new GroupProgress(parameters.sharing().groups().size(), buckets::complete, group -> {});
        stream = parameters.scope().stream();
    }

    /** Refuses gradients that would be added to a sum, and a step without the sum. */
    private final class Use implements ParameterUse {
        @Override
        public void reading(Parameter parameter) {
            progress.uses(parameter.group());
        }

        @Override
        public void writing(Parameter parameter) {
            written = true;
            if (summed || buckets.isSummed(parameter.group())) {
                throw new IllegalStateException("gradient of " + parameter.name()
                        + ": summed over the ranks already, got another backward call; call "
                        + (summed
                                ? "sumGradients after the step's last backward call, and the optimizer's step before the next"
                                : "lastMicroBatch before the step's last micro-batch alone, whose forward calls all come"
                                        + " before its backward calls"));
            }
        }

        @Override
        public void stepping() {
            if (written && !summed) {
                throw new IllegalStateException("gradients: expected the sum over " + communicator.ranks()
                        + " ranks, got this rank's alone, with which the ranks' weights would part; call sumGradients()"
                        + " before the norm and the optimizer's step");
            }
        }

        @Override
        public String toString() {
            return "a DataParallel";
        }
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
     *     DataParallel or FullySharded has the parameters
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
     *     or when another DataParallel or FullySharded has the parameters
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
        GradientBuckets buckets = new GradientBuckets(parameters, communicator, bucketBytes);
        try {
            DataParallel made = new DataParallel(parameters, communicator, buckets);
            Communicator.group(() -> {
                for (Parameter parameter : parameters.all()) {
                    Tensor weight = parameter.weight();
                    communicator.broadcast(weight, weight, 0, stream);
                }
            });
            parameters.changed();
            parameters.sharing().observe(made.use);
            parameters.atNextStep(made.atNextStep);
            parameters.atForgetting(made.atNextStep);
            return made;
        } catch (RuntimeException | Error failure) {
            buckets.close();
            throw failure;
        }
    }

    private void begin() {
        summed = false;
        written = false;
        leave();
        buckets.restart();
    }

    private void leave() {
        Pass present = last;
        if (present != null) {
            present.forget(progress);
            last = null;
        }
    }

    /**
     * Says that the micro-batch which {@code pass} has begun is this rank's last one of the step: its backward sums each bucket as soon
     * as the bucket's groups are complete. Call it after {@link Pass#begin()} and before the first layer. Without this call, as on a rank that
     * has no sequences, {@link #sumGradients} sums all.
     *
     * @throws IllegalArgumentException when the pass runs on another stream than the parameters', or is one of evaluation
     * @throws IllegalStateException when the pass was not begun, a layer was called since, the gradients were summed already, or this is
     *     closed
     */
    public void lastMicroBatch(Pass pass) {
        ensureOpen();
        if (Checks.given("pass", pass).stream() != stream) {
            throw new IllegalArgumentException("pass: expected one on the parameters' stream, got " + pass);
        }
        if (!pass.isTraining()) {
            throw new IllegalArgumentException("pass: expected one of training, got the " + pass);
        }
        if (!pass.isBegun()) {
            throw new IllegalStateException(
                    "lastMicroBatch: expected after pass.begin() and before the first layer, got a pass that was not begun");
        }
        if (summed || pass.savedCount() > 0) {
            throw new IllegalStateException(
                    summed
                            ? "lastMicroBatch: expected before sumGradients, got it after; take the optimizer's step first"
                            : "lastMicroBatch: expected after pass.begin() and before the first layer, got it after a layer");
        }
        leave();
        progress.restart();
        pass.observeCalls(progress);
        last = pass;
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
     * Enqueues what is left of the sum of all ranks' gradients, in place, after the last micro-batch's backward and before the norm and
     * the optimizer, which wait for all of it on the device.
     * What no backward pass of this rank has written counts as 0; a rank without sequences takes part with nothing.
     *
     * @throws IllegalStateException when they were summed since the last step, or after {@link #close()}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public void sumGradients() {
        ensureOpen();
        if (summed) {
            throw new IllegalStateException(
                    "sumGradients: expected one call a step, got a second one; take the optimizer's step"
                            + " before, or call Parameters.forgetGradients");
        }
        leave();
        parameters.gradients(); // refuses closed parameters
        buckets.finish();
        summed = true;
    }

    /** Says which buckets are summed, in which order, and how many of them while backward ran in this step. */
    public String explain() {
        return "gradients summed over " + communicator.ranks() + " ranks in " + buckets.count()
                + (buckets.count() == 1 ? " bucket" : " buckets") + ", in this order; " + buckets.overlapped()
                + (buckets.overlapped() == 1 ? " was" : " were") + " sent while backward was running:"
                + buckets.explain();
    }

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the data-parallel training is closed");
        }
    }

    /**
     * Leaves the parameters alone from now on. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    @Override
    public void close() {
        if (!closed) {
            Inside.state(stream).ensureCloses();
            closed = true;
            parameters.forget(atNextStep);
            leave();
            parameters.sharing().forget(use);
            buckets.close();
        }
    }

    @Override
    public String toString() {
        return "data-parallel training on rank " + communicator.rank() + " of " + communicator.ranks() + ", "
                + buckets.count() + (buckets.count() == 1 ? " bucket" : " buckets");
    }
}
