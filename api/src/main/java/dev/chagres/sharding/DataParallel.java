package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import java.nio.charset.StandardCharsets;
import java.util.zip.CRC32C;

/**
 * Data-parallel training: each rank has the whole model and its part of a step's sequences, and the gradients of all ranks are summed
 * before the optimizer's step, so that the ranks' weights stay the same.
 *
 * <p>{@code gradient = sum over ranks r of gradient of rank r}. The sum is the gradient of one loss, the mean over all labelled tokens,
 * when each rank divides by their number over all ranks: {@link #sumOverRanks} adds those up, and {@link
 * dev.chagres.layer.CrossEntropy#forward(Tensor, Tensor, Tensor, dev.chagres.layer.Pass)} takes the sum as divisor. With rank r's pass
 * seeded as micro-batch r, N ranks compute what one rank computes that accumulates N micro-batches.
 *
 * <p>{@link #sumGradients} runs on the parameters' stream after backward; nothing overlaps backward.
 *
 * {@snippet file="dev/chagres/layer/DataParallelTest.java" region="step"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.nn.parallel.DistributedDataParallel}.
 */
public final class DataParallel implements AutoCloseable {
    private final Parameters parameters;
    private final Communicator communicator;
    private final Stream stream;
    private final Runnable atNextStep = this::begin;
    private boolean summed;
    private boolean closed;

    private DataParallel(Parameters parameters, Communicator communicator) {
        this.parameters = parameters;
        this.communicator = communicator;
        stream = parameters.scope().stream();
    }

    /**
     * Checks that all ranks have the same parameters, and gives all of them the weights of rank 0. Each rank calls it. Load states
     * of weights and optimizer after this, the same on each rank: the weights are written here, so AdamW makes its FP32 masters anew
     * at the next step.
     *
     * @param parameters closed after this
     * @param communicator of the ranks that hold copies of the model; closed after this
     * @throws IllegalArgumentException when the parameters lie on another device than the communicator's
     * @throws IllegalStateException when ranks have other parameters: other names, shapes, types, or others frozen
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static DataParallel of(Parameters parameters, Communicator communicator) {
        Stream stream = Checks.given("parameters", parameters).scope().stream();
        if (stream.device() != Checks.given("communicator", communicator).device()) {
            throw new IllegalArgumentException(
                    "parameters: expected those of " + communicator.device() + ", got some of " + stream.device());
        }
        DataParallel made = new DataParallel(parameters, communicator);
        made.ensureAlike();
        Communicator.group(() -> {
            for (Parameter parameter : parameters.all()) {
                Tensor weight = parameter.weight();
                communicator.broadcast(weight, weight, 0, stream);
            }
        });
        parameters.changed();
        parameters.atNextStep(made.atNextStep);
        parameters.atForgetting(made.atNextStep);
        return made;
    }

    /** Compares a checksum of all parameters' descriptions: a sum over other gradients would be nonsense, or hang. */
    private void ensureAlike() {
        CRC32C checksum = new CRC32C();
        for (Parameter parameter : parameters.all()) {
            String text = parameter + " " + parameter.weight().dtype() + " " + parameter.isFrozen();
            checksum.update(text.getBytes(StandardCharsets.UTF_8));
        }
        try (Scope scope = stream.device().openScope(stream)) {
            Tensor own = scope.tensor(DType.INT64, 2);
            Tensor all = scope.tensor(DType.INT64, 2L * communicator.ranks());
            own.set(stream, checksum.getValue(), parameters.count());
            communicator.allGather(own, all, stream);
            communicator.synchronize(stream);
            long[] values = all.toLongs(stream);
            for (int rank = 1; rank < communicator.ranks(); rank++) {
                if (values[2 * rank] != values[0] || values[2 * rank + 1] != values[1]) {
                    throw new IllegalStateException(
                            "parameters: expected the same on all ranks, got others on rank " + rank
                                    + " (" + values[2 * rank + 1] + " elements) than on rank 0 (" + values[1]
                                    + "); build the same plan, with the same types and the same parameters frozen, on each");
                }
            }
        }
    }

    private void begin() {
        summed = false;
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
     * Enqueues the sum of all ranks' gradients, in place, after the last micro-batch's backward and before the norm and the optimizer.
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
        parameters.completeGradients();
        Tensor gradients = parameters.gradients();
        communicator.allReduce(gradients, gradients, Reduction.SUM, stream);
        summed = true;
    }

    private void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the data-parallel training is closed");
        }
    }

    /** Leaves the parameters alone from now on. A second call does nothing. */
    @Override
    public void close() {
        if (!closed) {
            closed = true;
            parameters.forget(atNextStep);
        }
    }
}
