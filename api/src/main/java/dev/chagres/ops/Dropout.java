package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;

/**
 * Dropout of single values, added to a residual.
 *
 * <p>Value i is kept if word {@code i % 4} of Philox4x32-10 with counter {@code offset + i / 4}, times 2^-32, is at least the probability.
 * Every provider keeps the same values.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_dropout_add}, {@code ops_dropout_backward} in {@code ops.h}.
 */
public final class Dropout {
    private static final int BITS_A_BYTE = 8;

    private Dropout() {}

    /**
     * Returns the bytes of a mask of {@code count} values.
     *
     * @throws IllegalArgumentException when it is negative
     */
    public static long maskBytes(long count) {
        if (count < 0) {
            throw new IllegalArgumentException("count: expected no negative number, got " + count);
        }
        return count / BITS_A_BYTE + (count % BITS_A_BYTE == 0 ? 0 : 1);
    }

    /**
     * Enqueues {@code y = residual + keep x / (1 - probability)}.
     *
     * @param x floating-point numbers of any shape
     * @param residual like x
     * @param y like x; may be x or residual
     * @param mask BYTE [{@link #maskBytes}]: receives one bit per value, the lowest first, 1 where it is kept
     * @param rngState INT64 [2]: seed and offset
     * @param probability of dropping a value, at least 0 and below 1
     * @throws IllegalArgumentException when shapes, types, probability or devices do not fit, or what is written shares
     *     memory otherwise
     */
    public static void dropoutAdd(
            Tensor x, Tensor residual, Tensor y, Tensor mask, Tensor rngState, float probability, Stream stream) {
        Checks.floats(stream, "x", x);
        Checks.like(stream, "residual", residual, x);
        Checks.like(stream, "y", y, x);
        Checks.vector(stream, "mask", mask, DType.BYTE, maskBytes(x.count()));
        Checks.vector(stream, "rngState", rngState, DType.INT64, 2);
        Checks.probability("probability", probability);
        Checks.writable("y", y);
        Checks.apartOrSame("y", y, "x", x);
        Checks.apartOrSame("y", y, "residual", residual);
        Checks.apart("y", y, "rngState", rngState);
        Checks.written("mask", mask, "x", x, "residual", residual);
        Checks.apart("mask", mask, "y", y, "rngState", rngState);
        Status.ops(
                Ops.ops_dropout_add(
                        x.address(),
                        residual.address(),
                        y.address(),
                        mask.address(),
                        rngState.address(),
                        probability,
                        x.count(),
                        x.dtype().code(),
                        stream.handle()),
                "ops_dropout_add");
    }

    /**
     * Enqueues {@code dx = keep dy / (1 - probability)}; the gradient of the residual is dy itself.
     *
     * @param dy gradient of the sum, of any shape
     * @param mask what forward wrote
     * @param dx like dy; may be dy
     * @param probability that of forward
     * @throws IllegalArgumentException when shapes, types, probability or devices do not fit, or dx shares memory
     *     otherwise
     */
    public static void dropoutBackward(Tensor dy, Tensor mask, Tensor dx, float probability, Stream stream) {
        Checks.floats(stream, "dy", dy);
        Checks.vector(stream, "mask", mask, DType.BYTE, maskBytes(dy.count()));
        Checks.like(stream, "dx", dx, dy);
        Checks.probability("probability", probability);
        Checks.writable("dx", dx);
        Checks.apartOrSame("dx", dx, "dy", dy);
        Checks.apart("dx", dx, "mask", mask);
        Status.ops(
                Ops.ops_dropout_backward(
                        dy.address(),
                        mask.address(),
                        dx.address(),
                        probability,
                        dy.count(),
                        dy.dtype().code(),
                        stream.handle()),
                "ops_dropout_backward");
    }
}
