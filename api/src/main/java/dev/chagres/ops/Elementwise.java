package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.Output;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Sums, differences, products, reciprocals, casts, the exact GELU, tanh, sigmoid and erf, element by element; a bias added to rows.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_add}, {@code ops_subtract}, {@code ops_multiply}, {@code ops_bias_add}, {@code ops_reciprocal}, {@code
 * ops_gelu_erf}, {@code ops_tanh}, {@code ops_sigmoid}, {@code ops_erf}, the four functions {@code …_backward} of these, {@code
 * ops_accumulate} and {@code ops_cast} in {@code ops.h}.
 */
public final class Elementwise {
    private Elementwise() {}

    /**
     * Enqueues {@code y = x + residual}.
     *
     * @param x floating-point numbers of any shape
     * @param residual like x
     * @param y like x; may be x or residual
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void add(Tensor x, Tensor residual, Tensor y, Stream stream) {
        binary(Ops::ops_add, "ops_add", x, "residual", residual, y, stream);
    }

    /**
     * Enqueues {@code y = x - other}.
     *
     * @param x floating-point numbers of any shape
     * @param other like x
     * @param y like x; may be x or other
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void subtract(Tensor x, Tensor other, Tensor y, Stream stream) {
        binary(Ops::ops_subtract, "ops_subtract", x, "other", other, y, stream);
    }

    /**
     * Enqueues {@code y = x other}.
     *
     * @param x floating-point numbers of any shape
     * @param other like x
     * @param y like x; may be x or other
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void multiply(Tensor x, Tensor other, Tensor y, Stream stream) {
        binary(Ops::ops_multiply, "ops_multiply", x, "other", other, y, stream);
    }

    /**
     * Enqueues {@code y[r, c] = (x[r, c] + bias[c]) + residual[r, c]}, rounded once.
     *
     * @param x [R, C], floating-point numbers
     * @param bias [C], of the type of x
     * @param residual like x; null: none is added
     * @param y like x; may be x or residual
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void biasAdd(Tensor x, Tensor bias, @Nullable Tensor residual, Tensor y, Stream stream) {
        Checks.matrix(stream, "x", Checks.floats(stream, "x", x));
        Checks.vector(stream, "bias", bias, x.dtype(), x.size(1));
        Checks.like(stream, "y", y, x);
        Checks.written("y", y, "bias", bias);
        Checks.apartOrSame("y", y, "x", x);
        if (residual != null) {
            Checks.like(stream, "residual", residual, x);
            Checks.apartOrSame("y", y, "residual", residual);
        }
        Status.ops(
                Ops.ops_bias_add(
                        x.address(),
                        bias.address(),
                        Checks.addressOrNull(residual),
                        y.address(),
                        x.size(0),
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_bias_add");
    }

    /**
     * Enqueues {@code y = 1 / x}.
     *
     * @param x floating-point numbers of any shape
     * @param y like x; may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void reciprocal(Tensor x, Tensor y, Stream stream) {
        unary(Ops::ops_reciprocal, "ops_reciprocal", x, y, stream);
    }

    /**
     * Enqueues {@code y = x / 2 (1 + erf(x / sqrt(2)))}: GELU itself, where {@link dev.chagres.te.Activation#GELU} is the form by tanh. NaN
     * of -infinity.
     *
     * @param x floating-point numbers of any shape
     * @param y like x; may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void geluErf(Tensor x, Tensor y, Stream stream) {
        unary(Ops::ops_gelu_erf, "ops_gelu_erf", x, y, stream);
    }

    /**
     * Enqueues the same, and raises {@code amax} to the largest magnitude of y, as it is stored. NaN does not count.
     *
     * @param x floating-point numbers of any shape
     * @param y like x; may be x
     * @param amax FLOAT32 [1], at least 0 before; null where it is not wanted
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or outputs share memory otherwise
     */
    public static void geluErf(Tensor x, Tensor y, @Nullable Tensor amax, Stream stream) {
        if (amax == null) {
            geluErf(x, y, stream);
            return;
        }
        Checks.floats(stream, "x", x);
        Checks.like(stream, "y", y, x);
        Checks.writable("y", y);
        Checks.apartOrSame("y", y, "x", x);
        Checks.vector(stream, "amax", amax, DType.FLOAT32, 1);
        Checks.written("amax", amax, "x", x, "y", y);
        int dtype = x.dtype().code();
        Status.ops(
                Ops.ops_gelu_erf_amax(x.address(), y.address(), amax.address(), x.count(), dtype, stream.handle()),
                "ops_gelu_erf_amax");
    }

    /**
     * Enqueues {@code dx = dy ((1 + erf(x / sqrt(2))) / 2 + x exp(-x^2 / 2) / sqrt(2 pi))}. NaN of infinite x.
     *
     * @param dy gradient of y, like x
     * @param x what {@link #geluErf} read, floating-point numbers of any shape
     * @param dx gradient of x, like x; may be dy or x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public static void geluErfBackward(Tensor dy, Tensor x, Tensor dx, Stream stream) {
        gradient(Ops::ops_gelu_erf_backward, "ops_gelu_erf_backward", dy, "x", x, dx, stream);
    }

    /**
     * Enqueues the same, and raises {@code amax} to the largest magnitude of dx, as it is stored. NaN does not count.
     *
     * @param dy gradient of y, like x
     * @param x what {@link #geluErf} read, floating-point numbers of any shape
     * @param dx gradient of x, like x; may be dy or x
     * @param amax FLOAT32 [1], at least 0 before; null where it is not wanted
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or outputs share memory otherwise
     */
    public static void geluErfBackward(Tensor dy, Tensor x, Tensor dx, @Nullable Tensor amax, Stream stream) {
        if (amax == null) {
            geluErfBackward(dy, x, dx, stream);
            return;
        }
        checkGradient(dy, "x", x, dx, stream);
        Checks.vector(stream, "amax", amax, DType.FLOAT32, 1);
        Checks.written("amax", amax, "x", x, "dy", dy);
        Checks.apart("amax", amax, "dx", dx);
        int dtype = x.dtype().code();
        Status.ops(
                Ops.ops_gelu_erf_backward_amax(
                        dy.address(), x.address(), dx.address(), amax.address(), x.count(), dtype, stream.handle()),
                "ops_gelu_erf_backward_amax");
    }

    /**
     * Enqueues {@code y = tanh(x)}.
     *
     * @param x floating-point numbers of any shape
     * @param y like x; may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void tanh(Tensor x, Tensor y, Stream stream) {
        unary(Ops::ops_tanh, "ops_tanh", x, y, stream);
    }

    /**
     * Enqueues {@code dx = dy (1 - y^2)}.
     *
     * @param dy gradient of y, like y
     * @param y what {@link #tanh} gave, floating-point numbers of any shape
     * @param dx gradient of x, like y; may be dy or y
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public static void tanhBackward(Tensor dy, Tensor y, Tensor dx, Stream stream) {
        gradient(Ops::ops_tanh_backward, "ops_tanh_backward", dy, "y", y, dx, stream);
    }

    /**
     * Enqueues {@code y = 1 / (1 + exp(-x))}.
     *
     * @param x floating-point numbers of any shape
     * @param y like x; may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void sigmoid(Tensor x, Tensor y, Stream stream) {
        unary(Ops::ops_sigmoid, "ops_sigmoid", x, y, stream);
    }

    /**
     * Enqueues {@code dx = dy y (1 - y)}.
     *
     * @param dy gradient of y, like y
     * @param y what {@link #sigmoid} gave, floating-point numbers of any shape
     * @param dx gradient of x, like y; may be dy or y
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public static void sigmoidBackward(Tensor dy, Tensor y, Tensor dx, Stream stream) {
        gradient(Ops::ops_sigmoid_backward, "ops_sigmoid_backward", dy, "y", y, dx, stream);
    }

    /**
     * Enqueues {@code y = erf(x)}.
     *
     * @param x floating-point numbers of any shape
     * @param y like x; may be x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory otherwise
     */
    public static void erf(Tensor x, Tensor y, Stream stream) {
        unary(Ops::ops_erf, "ops_erf", x, y, stream);
    }

    /**
     * Enqueues {@code dx = dy 2 / sqrt(pi) exp(-x^2)}.
     *
     * @param dy gradient of y, like x
     * @param x what {@link #erf} read, floating-point numbers of any shape
     * @param dx gradient of x, like x; may be dy or x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or dx shares memory otherwise
     */
    public static void erfBackward(Tensor dy, Tensor x, Tensor dx, Stream stream) {
        gradient(Ops::ops_erf_backward, "ops_erf_backward", dy, "x", x, dx, stream);
    }

    /**
     * Enqueues {@code y = x}, or {@code y = y + x}.
     *
     * @param x floating-point numbers of any shape
     * @param y FLOAT32, as many elements as x in any shape
     * @throws IllegalArgumentException when sizes, types or devices do not fit, or y shares memory with x
     */
    public static void accumulate(Tensor x, Tensor y, Output output, Stream stream) {
        Checks.given("output", output);
        Checks.floats(stream, "x", x);
        Checks.counted(stream, "y", Checks.typed(stream, "y", y, DType.FLOAT32), x);
        Checks.written("y", y, "x", x);
        Status.ops(
                Ops.ops_accumulate(
                        x.address(),
                        y.address(),
                        output.beta(),
                        x.count(),
                        x.dtype().code(),
                        stream.handle()),
                "ops_accumulate");
    }

    /**
     * Enqueues {@code y = x}, rounded to nearest even in the type of y.
     *
     * @param x floating-point numbers of any shape
     * @param y floating-point numbers, as many elements as x in any shape
     * @throws IllegalArgumentException when sizes, types or devices do not fit, or y shares memory with x
     */
    public static void cast(Tensor x, Tensor y, Stream stream) {
        Checks.floats(stream, "x", x);
        Checks.counted(stream, "y", Checks.floats(stream, "y", y), x);
        Checks.written("y", y, "x", x);
        Status.ops(
                Ops.ops_cast(
                        x.address(), x.dtype().code(), y.address(), y.dtype().code(), x.count(), stream.handle()),
                "ops_cast");
    }

    @FunctionalInterface
    private interface Unary {
        int call(long x, long y, long count, int dtype, MemorySegment stream);
    }

    @FunctionalInterface
    interface Binary {
        int call(long x, long other, long y, long count, int dtype, MemorySegment stream);
    }

    /** y may be x. */
    private static void unary(Unary function, String name, Tensor x, Tensor y, Stream stream) {
        Checks.floats(stream, "x", x);
        Checks.like(stream, "y", y, x);
        Checks.writable("y", y);
        Checks.apartOrSame("y", y, "x", x);
        int dtype = x.dtype().code();
        Status.ops(function.call(x.address(), y.address(), x.count(), dtype, stream.handle()), name);
    }

    /** y may be x or the other input. */
    static void binary(Binary function, String name, Tensor x, String argument, Tensor other, Tensor y, Stream stream) {
        Checks.floats(stream, "x", x);
        Checks.like(stream, argument, other, x);
        Checks.like(stream, "y", y, x);
        Checks.writable("y", y);
        Checks.apartOrSame("y", y, "x", x);
        Checks.apartOrSame("y", y, argument, other);
        call(function, name, x, other, y, stream);
    }

    private static void call(Binary function, String name, Tensor x, Tensor other, Tensor y, Stream stream) {
        int dtype = x.dtype().code();
        Status.ops(function.call(x.address(), other.address(), y.address(), x.count(), dtype, stream.handle()), name);
    }

    /** dx may be dy, or what forward read or gave, which is {@code kept}. */
    private static void gradient(
            Binary function, String name, Tensor dy, String argument, Tensor kept, Tensor dx, Stream stream) {
        checkGradient(dy, argument, kept, dx, stream);
        call(function, name, dy, kept, dx, stream);
    }

    private static void checkGradient(Tensor dy, String argument, Tensor kept, Tensor dx, Stream stream) {
        Checks.floats(stream, argument, kept);
        Checks.like(stream, "dy", dy, kept);
        Checks.like(stream, "dx", dx, kept);
        Checks.writable("dx", dx);
        Checks.apartOrSame("dx", dx, "dy", dy);
        Checks.apartOrSame("dx", dx, argument, kept);
    }
}
