package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.Output;

/**
 * The residual sum with its layer norm as one operation: TE has the norm but not the sum, and both are bound by memory.
 *
 * <p>All matrices are [R, C] of one floating-point type, as gamma and beta [C] are; each begins at a multiple of 16 bytes,
 * as every tensor of a scope does. {@link #takes} says which rows are taken.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_residual_norm_forward}, {@code ops_residual_norm_backward} in {@code ops.h}.
 */
public final class ResidualNorm {
    private static final int PACK_BYTES = 16;
    private static final long MOST_ROW_BYTES = 16 << 10;

    /** What {@link #takes} asks for, in words. */
    public static final String LIMITS = "rows of whole 16-byte packs, at most 16 KiB";

    private ResidualNorm() {}

    /** Returns whether rows like those of {@code x} are taken: not empty, whole 16-byte packs, at most 16 KiB. */
    public static boolean takes(Tensor x) {
        long rowBytes =
                x.rank() == 2 && x.dtype().isFloat() ? x.size(1) * x.dtype().byteSize() : 0;
        return rowBytes > 0 && rowBytes % PACK_BYTES == 0 && rowBytes <= MOST_ROW_BYTES;
    }

    /**
     * Enqueues {@code h = x + residual} and {@code y = (h - mean) inverse gamma + beta}, with mean the mean of a row of h
     * and inverse 1 over the root of its variance plus epsilon.
     *
     * @param x [R, C]
     * @param residual like x
     * @param gamma [C]
     * @param beta [C]
     * @param epsilon above 0
     * @param h like x; may be x or residual
     * @param y like x
     * @param mean FLOAT32 [R]
     * @param inverse FLOAT32 [R]
     * @throws IllegalArgumentException when shapes, types, epsilon or devices do not fit, or what is written shares memory
     *     otherwise
     */
    public static void forward(
            Tensor x,
            Tensor residual,
            Tensor gamma,
            Tensor beta,
            float epsilon,
            Tensor h,
            Tensor y,
            Tensor mean,
            Tensor inverse,
            Stream stream) {
        ResidualNormChecks.forward(x, residual, gamma, beta, epsilon, h, y, mean, inverse, stream);
        Status.ops(
                Ops.ops_residual_norm_forward(
                        x.address(),
                        residual.address(),
                        gamma.address(),
                        beta.address(),
                        epsilon,
                        h.address(),
                        y.address(),
                        mean.address(),
                        inverse.address(),
                        x.size(0),
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_residual_norm_forward");
    }

    /**
     * Enqueues {@code dh = dresidual + } the gradient of the norm's input, {@code dgamma[c] = sum over r of dy (h - mean)
     * inverse} and {@code dbeta[c] = sum over r of dy}; the last two may add to what is there.
     *
     * @param dy gradient of y, [R, C]
     * @param h what forward wrote
     * @param mean what forward wrote
     * @param inverse what forward wrote
     * @param gamma [C]
     * @param dresidual gradient of h from elsewhere, like dy
     * @param dh like dy; may be dresidual, dy or h
     * @param dgamma FLOAT32 [C]
     * @param dbeta FLOAT32 [C]
     * @param output what happens to dgamma and dbeta
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory otherwise
     */
    public static void backward(
            Tensor dy,
            Tensor h,
            Tensor mean,
            Tensor inverse,
            Tensor gamma,
            Tensor dresidual,
            Tensor dh,
            Tensor dgamma,
            Tensor dbeta,
            Output output,
            Stream stream) {
        Checks.given("output", output);
        ResidualNormChecks.backward(dy, h, mean, inverse, gamma, dresidual, dh, dgamma, dbeta, stream);
        Status.ops(
                Ops.ops_residual_norm_backward(
                        dy.address(),
                        h.address(),
                        mean.address(),
                        inverse.address(),
                        gamma.address(),
                        dresidual.address(),
                        dh.address(),
                        dgamma.address(),
                        dbeta.address(),
                        output.beta(),
                        h.size(0),
                        h.size(1),
                        h.dtype().code(),
                        stream.handle()),
                "ops_residual_norm_backward");
    }
}
