package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import java.lang.foreign.MemorySegment;

/**
 * Losses of single elements, with their gradients: the squared error, and the binary cross-entropy of logits. The mean over N elements is
 * {@link RowSum} of the losses, seen as [N, 1], divided by N; then dy is 1 / N everywhere.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_squared_error}, {@code ops_binary_cross_entropy} and their functions {@code …_backward} in {@code ops.h}.
 */
public final class ElementLoss {
    private ElementLoss() {}

    /**
     * Enqueues {@code y = (x - target)^2}.
     *
     * @param x floating-point numbers of any shape
     * @param target like x
     * @param y like x; may be x or target
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void squaredError(Tensor x, Tensor target, Tensor y, Stream stream) {
        Elementwise.binary(Ops::ops_squared_error, "ops_squared_error", x, "target", target, y, stream);
    }

    /**
     * Enqueues {@code dx = dy 2 (x - target)}.
     *
     * @param dy gradient of y, like x
     * @param x what {@link #squaredError} read, floating-point numbers of any shape
     * @param target what it read, like x
     * @param dx gradient of x, like x; may be dy, x or target
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public static void squaredErrorBackward(Tensor dy, Tensor x, Tensor target, Tensor dx, Stream stream) {
        backward(Ops::ops_squared_error_backward, "ops_squared_error_backward", dy, x, target, dx, stream);
    }

    /**
     * Enqueues {@code y = max(x, 0) - x target + log(1 + exp(-|x|))}: minus the logarithm of the probability of {@code target}, of which {@code
     * sigmoid(x)} is the estimate. It cancels nothing where x is large. NaN of infinite x.
     *
     * @param x logits, floating-point numbers of any shape
     * @param target probabilities, like x; 0 and 1 for classes
     * @param y like x; may be x or target
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void binaryCrossEntropy(Tensor x, Tensor target, Tensor y, Stream stream) {
        Elementwise.binary(Ops::ops_binary_cross_entropy, "ops_binary_cross_entropy", x, "target", target, y, stream);
    }

    /**
     * Enqueues {@code dx = dy (sigmoid(x) - target)}.
     *
     * @param dy gradient of y, like x
     * @param x what {@link #binaryCrossEntropy} read, floating-point numbers of any shape
     * @param target what it read, like x
     * @param dx gradient of x, like x; may be dy, x or target
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public static void binaryCrossEntropyBackward(Tensor dy, Tensor x, Tensor target, Tensor dx, Stream stream) {
        backward(
                Ops::ops_binary_cross_entropy_backward, "ops_binary_cross_entropy_backward", dy, x, target, dx, stream);
    }

    @FunctionalInterface
    private interface Gradient {
        int call(long dy, long x, long target, long dx, long count, int dtype, MemorySegment stream);
    }

    /** dx may be dy, x or the target. */
    private static void backward(
            Gradient function, String name, Tensor dy, Tensor x, Tensor target, Tensor dx, Stream stream) {
        Checks.floats(stream, "x", x);
        Checks.like(stream, "target", target, x);
        Checks.like(stream, "dx", dx, x);
        Checks.writable("dx", dx);
        Checks.apartOrSame("dx", dx, "x", x);
        Checks.apartOrSame("dx", dx, "target", target);
        Checks.like(stream, "dy", dy, x);
        Checks.apartOrSame("dx", dx, "dy", dy);
        int dtype = x.dtype().code();
        Status.ops(
                function.call(
                        dy.address(), x.address(), target.address(), dx.address(), x.count(), dtype, stream.handle()),
                name);
    }
}
