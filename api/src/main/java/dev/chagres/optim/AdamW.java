package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;
import dev.chagres.internal.TensorLists;
import dev.chagres.layer.Parameters;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Adam with decoupled weight decay, on FP32 master weights:
 * {@code m = b1 m + (1 - b1) g}, {@code v = b2 v + (1 - b2) g^2},
 * {@code w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w)}.
 *
 * <p>Weights that are not FLOAT32 have a master copy, made with this object, from which they are rounded after each step:
 * whoever writes weights later, as loading a model does, calls {@link #takeWeights}. Matrices decay, biases and norms do not.
 * The kernels read learning rate, step number and gradient scale on the device, and nothing waits.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Loshchilov and Hutter, Decoupled weight decay regularization (2017);
 * {@code nvte_multi_tensor_adam_capturable_cuda} in TE's {@code multi_tensor.h}.
 */
public final class AdamW implements AutoCloseable {
    private static final int CHUNK = 2048 * 32;
    private static final int DECOUPLED = 1;
    private static final int BIAS_CORRECTION = 1;

    /**
     * Numbers of the method.
     *
     * @param beta1 memory of the mean, within [0, 1)
     * @param beta2 memory of the square, within [0, 1)
     * @param epsilon added to the root, positive
     * @param weightDecay of matrices, not negative
     */
    public record Config(float beta1, float beta2, float epsilon, float weightDecay) {
        /** PyTorch's defaults: 0.9, 0.999, 1e-8 and a decay of 0.01. */
        public static Config standard() {
            return new Config(0.9f, 0.999f, 1e-8f, 0.01f);
        }

        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when one is out of its range
         */
        public Config {
            if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
                throw new IllegalArgumentException(
                        "beta1, beta2: expected numbers within [0, 1), got " + beta1 + " and " + beta2);
            }
            if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
                throw new IllegalArgumentException("epsilon: expected a positive number, got " + epsilon);
            }
            if (!(weightDecay >= 0) || Float.isInfinite(weightDecay)) {
                throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
            }
        }
    }

    private final Parameters parameters;
    private final Config config;
    private final Scope scope;
    private final Tensor master;
    private final Tensor mean;
    private final Tensor square;
    private final TensorLists decayed;
    private final TensorLists others;
    private final Tensor neverSkip;
    private final Tensor learningRate;
    private final Tensor stepNumber;
    private final MemorySegment host;
    private int step;

    /**
     * Takes memory for the state, in a scope of its own: FP32 mean, square and, for 16-bit weights, a master copy of what
     * they are now.
     */
    public AdamW(Parameters parameters, Config config) {
        this.parameters = parameters;
        this.config = config;
        Stream stream = parameters.scope().stream();
        scope = parameters.scope().device().openScope(stream);
        try {
            Tensor weights = parameters.weights();
            long count = weights.count();
            if (weights.dtype() == DType.FLOAT32) {
                master = weights;
            } else {
                master = scope.tensor(DType.FLOAT32, count);
                Elementwise.cast(stream, weights.cell(), master.cell());
            }
            mean = scope.tensor(DType.FLOAT32, count);
            square = scope.tensor(DType.FLOAT32, count);
            mean.zero(stream);
            square.zero(stream);
            neverSkip = scope.tensor(DType.INT32, 1);
            neverSkip.zero(stream);
            learningRate = scope.tensor(DType.FLOAT32, 1);
            stepNumber = scope.tensor(DType.INT32, 1);
            host = scope.device().state().arena().allocate(8, 8);
            decayed = lists(0, parameters.decayedCount());
            others = lists(parameters.decayedCount(), count - parameters.decayedCount());
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    private TensorLists lists(long offset, long count) {
        return new TensorLists(
                scope, scope.device().state().arena(), offset, count, parameters.gradients(), master, mean, square);
    }

    /**
     * Enqueues a new master copy of weights that were written from outside, as loading a model does; mean, square and step
     * number stay. FLOAT32 weights are their own master.
     *
     * @throws IllegalArgumentException when the stream belongs to another device
     * @throws IllegalStateException when this or the parameters are closed
     */
    public void takeWeights(Stream stream) {
        Checks.stream(scope, stream);
        Checks.on(scope, "state", mean);
        if (master != parameters.weights()) {
            Elementwise.cast(stream, Checks.on(scope, "parameters", parameters.weights()), master.cell());
        }
    }

    /** Returns the number of steps taken. */
    public int step() {
        return step;
    }

    /** Returns the FP32 weights, one vector in the order of {@link Parameters#weights()}. */
    public Tensor master() {
        return master;
    }

    /** Returns the bytes of the state. */
    public long byteSize() {
        return scope.reservedBytes();
    }

    /**
     * Enqueues one step with the gradients of the parameters, clipped as {@code norm} has computed. When a gradient is not
     * finite, weights and state stay as they are, although the step counts.
     *
     * @param rate learning rate, not negative
     * @param norm computed on the same stream after the last backward pass; for this step alone
     * @throws IllegalArgumentException when the rate is negative or no number, or the norm is that of other parameters
     * @throws IllegalStateException when this or the parameters are closed, or the norm was not computed since the last
     *     step
     */
    public void step(Stream stream, float rate, GradientNorm norm) {
        if (norm.parameters() != parameters) {
            throw new IllegalArgumentException("norm: expected that of this optimizer's parameters, got another");
        }
        check(stream, rate, norm.scale());
        norm.use();
        advance(stream, rate, norm.scale(), norm.skip());
    }

    /**
     * Enqueues one step with the gradients of the parameters, each multiplied by {@code gradientScale}.
     *
     * @param rate learning rate, not negative
     * @param gradientScale FLOAT32 [1]
     * @throws IllegalArgumentException when the rate is negative or no number, or shape, type or device do not fit
     * @throws IllegalStateException when this or the parameters are closed
     */
    public void step(Stream stream, float rate, Tensor gradientScale) {
        check(stream, rate, gradientScale);
        advance(stream, rate, gradientScale, neverSkip);
    }

    private void check(Stream stream, float rate, Tensor gradientScale) {
        Checks.stream(scope, stream);
        Checks.on(scope, "state", mean);
        Checks.on(scope, "parameters", parameters.gradients());
        Checks.vector(scope, "gradientScale", gradientScale, DType.FLOAT32, 1);
        if (!(rate >= 0) || Float.isInfinite(rate)) {
            throw new IllegalArgumentException("rate: expected a number of at least 0, got " + rate);
        }
    }

    private void advance(Stream stream, float rate, Tensor gradientScale, Tensor skip) {
        step++;
        host.set(ValueLayout.JAVA_FLOAT, 0, rate);
        upload(stream, learningRate);
        host.set(ValueLayout.JAVA_INT, 0, step);
        upload(stream, stepNumber);
        run(stream, decayed, config.weightDecay, gradientScale, skip);
        run(stream, others, 0, gradientScale, skip);
        if (master != parameters.weights()) {
            Elementwise.cast(stream, master.cell(), parameters.weights().cell());
        }
    }

    /** Enqueues a copy of four bytes as a kernel argument: the host value may change at once. */
    private void upload(Stream stream, Tensor target) {
        Status.te(
                TransformerEngine.te_copy_host_to_device_via_kernel(host, target.pointer(), 4, stream.handle()),
                "nvte_copy_host_to_device_via_kernel");
    }

    private void run(Stream stream, TensorLists lists, float weightDecay, Tensor gradientScale, Tensor skip) {
        if (lists.tensorCount() == 0) {
            return;
        }
        Status.te(
                TransformerEngine.te_multi_tensor_adam_capturable_cuda(
                        CHUNK,
                        skip.cell().handle(),
                        lists.lists(),
                        lists.listCount(),
                        lists.tensorCount(),
                        learningRate.cell().handle(),
                        config.beta1,
                        config.beta2,
                        config.epsilon,
                        stepNumber.cell().handle(),
                        DECOUPLED,
                        BIAS_CORRECTION,
                        weightDecay,
                        gradientScale.cell().handle(),
                        stream.handle()),
                "nvte_multi_tensor_adam_capturable_cuda");
    }

    /** Frees the state. A second call does nothing. */
    @Override
    public void close() {
        scope.close();
    }
}
