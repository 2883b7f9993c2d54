package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * A norm fused with the residual sum before it and the casts to FP8 after it: TE's norms fuse neither the sum nor the transpose, and all of
 * them are limited by memory bandwidth.
 *
 * <p>All matrices are [R, C] of one floating-point type, as gamma and beta [C] are; each begins at a multiple of 16 bytes,
 * as every tensor of a scope does. {@link #takes} tells which rows are supported.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_residual_norm_forward}, {@code ops_residual_norm_backward} in {@code ops.h}.
 */
public final class ResidualNorm {
    private static final int PACK_BYTES = 16;
    private static final long MOST_ROW_BYTES = 16 << 10;

    /** The limits that {@link #takes} checks, for texts. */
    public static final String LIMITS = "rows of whole 16-byte packs, at most 16 KiB";

    private ResidualNorm() {}

    /** Returns whether rows like those of {@code x} are supported: not empty, whole 16-byte packs, at most 16 KiB. */
    public static boolean takes(Tensor x) {
        long rowBytes = Checks.given("x", x).rank() == 2 && x.dtype().isFloat()
                ? x.size(1) * x.dtype().byteSize()
                : 0;
        return rowBytes > 0 && rowBytes % PACK_BYTES == 0 && rowBytes <= MOST_ROW_BYTES;
    }

    /**
     * Enqueues {@code h = x + residual} and {@code y = norm(h)}, as {@link #forward(NormFunction, Tensor, Tensor, Tensor, Tensor, Tensor,
     * Tensor, Tensor, QuantizedTensor, Tensor, Tensor, Stream)} without bias.
     *
     * @throws IllegalArgumentException as there
     */
    public static void forward(
            NormFunction norm,
            Tensor x,
            @Nullable Tensor residual,
            Tensor gamma,
            @Nullable Tensor beta,
            @Nullable Tensor h,
            @Nullable Tensor y,
            @Nullable QuantizedTensor quantized,
            @Nullable Tensor mean,
            Tensor inverse,
            Stream stream) {
        forward(norm, x, null, residual, gamma, beta, h, y, quantized, mean, inverse, stream);
    }

    /**
     * Enqueues {@code h = x + residual}, or {@code h = (x + bias) + residual} rounded once, and {@code y = norm(h)}, in its own type, in FP8, or both. FP8 numbers are {@code q = y scale},
     * from y before it is rounded, clamped to the largest number.
     *
     * @param norm which norm
     * @param x [R, C]
     * @param bias [C], such as that of the product that wrote x; null: none. Needs a residual
     * @param residual like x; null: h is x
     * @param gamma [C]
     * @param beta [C]; null for RMS norm
     * @param h like x; may be x or residual; null without residual
     * @param y like x; null for FP8 alone
     * @param quantized FLOAT8_E4M3, scaled by {@link dev.chagres.Scaling#TENSOR}, with scale, C a multiple of 16: [R, C] with
     *     rowwise data alone; with columnwise data [R rounded up to a multiple of 16, C], whose padding becomes 0. Its amax, if it has one,
     *     is raised to the largest magnitude of y before rounding. With an amax alone, without scale and data, that is raised to the
     *     largest magnitude of y as stored. Null: none
     * @param mean FLOAT32 [R]; null for RMS norm
     * @param inverse FLOAT32 [R]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, what must go together does not, or what is
     *     written shares memory otherwise
     */
    public static void forward(
            NormFunction norm,
            Tensor x,
            @Nullable Tensor bias,
            @Nullable Tensor residual,
            Tensor gamma,
            @Nullable Tensor beta,
            @Nullable Tensor h,
            @Nullable Tensor y,
            @Nullable QuantizedTensor quantized,
            @Nullable Tensor mean,
            Tensor inverse,
            Stream stream) {
        Checks.given("norm", norm);
        ResidualNormChecks.forward(norm, x, bias, residual, gamma, beta, h, y, quantized, mean, inverse, stream);
        NormStruct struct = Inside.state(stream).get(NormStruct.ATTACHMENT);
        struct.describe(norm, x);
        struct.parameters(gamma, h, mean, inverse);
        struct.forward(x, bias, residual, beta, y);
        struct.quantized(quantized);
        Status.ops(Ops.ops_residual_norm_forward(struct.segment(), stream.handle()), "ops_residual_norm_forward");
    }

    /**
     * Enqueues {@code dh = dresidual + } the gradient of the norm's input, which is rounded to the type of dh before, {@code dgamma[c] =
     * sum over r of dy (h - mean) inverse} and {@code dbeta[c] = sum over r of dy}; the last two may add to what is there.
     *
     * @param norm which norm
     * @param dy gradient of y, [R, C]
     * @param h what forward wrote; x where it had no residual
     * @param mean what forward wrote; null for RMS norm
     * @param inverse what forward wrote
     * @param gamma [C]
     * @param dresidual gradient of h that bypasses the norm, like dy; null: none
     * @param dh like dy; may be dresidual, dy or h
     * @param dgamma FLOAT32 [C]
     * @param dbeta FLOAT32 [C]; null for RMS norm
     * @param output what happens to dgamma and dbeta
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory otherwise
     */
    public static void backward(
            NormFunction norm,
            Tensor dy,
            Tensor h,
            @Nullable Tensor mean,
            Tensor inverse,
            Tensor gamma,
            @Nullable Tensor dresidual,
            Tensor dh,
            Tensor dgamma,
            @Nullable Tensor dbeta,
            Output output,
            Stream stream) {
        Checks.given("norm", norm);
        Checks.given("output", output);
        ResidualNormChecks.backward(norm, dy, h, mean, inverse, gamma, dresidual, dh, dgamma, dbeta, stream);
        NormStruct struct = Inside.state(stream).get(NormStruct.ATTACHMENT);
        struct.describe(norm, dy);
        struct.parameters(gamma, h, mean, inverse);
        struct.backward(dy, dresidual, dh, dgamma, dbeta, output.beta());
        Status.ops(Ops.ops_residual_norm_backward(struct.segment(), stream.handle()), "ops_residual_norm_backward");
    }
}
