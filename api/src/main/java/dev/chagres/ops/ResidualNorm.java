package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.CallMemory;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.ops.NormFunction.Kind;
import dev.chagres.ops.NormStruct.NormQuantization;
import dev.chagres.te.Output;
import org.jspecify.annotations.Nullable;

/**
 * A norm fused with the residual sum before it and the casts to FP8 after it: TE's norms fuse neither the sum nor the transpose, and all of
 * them are limited by memory bandwidth.
 *
 * <p>All matrices are [R, C] of one floating-point type, as gamma and beta [C] are; each begins at a multiple of 16 bytes,
 * as every tensor of a scope does. {@link #takes} tells which rows are supported.
 *
 * <p>The tensors that several calls share are set before a call, and stay until they are set again.
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

    private final NormFunction norm;
    private @Nullable Tensor gamma;
    private @Nullable Tensor beta;
    private @Nullable Tensor mean;
    private @Nullable Tensor inverse;
    private @Nullable Tensor bias;
    private @Nullable Tensor residual;
    private @Nullable Tensor h;
    private @Nullable Tensor dgamma;
    private @Nullable Tensor dbeta;
    private Output output = Output.OVERWRITE;

    /** Makes a norm without tensors. */
    public ResidualNorm(NormFunction norm) {
        this.norm = Checks.given("norm", norm);
    }

    /** Returns whether rows like those of {@code x} are supported: not empty, whole 16-byte packs, at most 16 KiB. */
    public static boolean takes(Tensor x) {
        long rowBytes = Checks.given("x", x).rank() == 2 && x.dtype().isFloat()
                ? x.size(1) * x.dtype().byteSize()
                : 0;
        return rowBytes > 0 && rowBytes % PACK_BYTES == 0 && rowBytes <= MOST_ROW_BYTES;
    }

    /**
     * Sets what the norm is multiplied by, and what is added.
     *
     * @param newGamma [C]
     * @param newBeta [C], which backward does not read; null for RMS norm
     */
    public ResidualNorm parameters(Tensor newGamma, @Nullable Tensor newBeta) {
        gamma = Checks.given("gamma", newGamma);
        beta = newBeta;
        return this;
    }

    /**
     * Sets what forward writes and backward reads.
     *
     * @param newMean FLOAT32 [R]; null for RMS norm
     * @param newInverse FLOAT32 [R]
     */
    public ResidualNorm statistics(@Nullable Tensor newMean, Tensor newInverse) {
        mean = newMean;
        inverse = Checks.given("inverse", newInverse);
        return this;
    }

    /**
     * Sets the sum before the norm of forward.
     *
     * @param newBias [C], such as that of the product that wrote x; null: none. Needs a residual
     * @param newResidual like x; null: h is x
     * @param newH like x; may be x or residual; null without residual
     */
    public ResidualNorm sum(@Nullable Tensor newBias, @Nullable Tensor newResidual, @Nullable Tensor newH) {
        bias = newBias;
        residual = newResidual;
        h = newH;
        return this;
    }

    /**
     * Sets the gradients of gamma and beta.
     *
     * @param newDgamma FLOAT32 [C]
     * @param newDbeta FLOAT32 [C]; null for RMS norm
     * @param newOutput what happens to both
     */
    public ResidualNorm gradients(Tensor newDgamma, @Nullable Tensor newDbeta, Output newOutput) {
        dgamma = Checks.given("dgamma", newDgamma);
        dbeta = newDbeta;
        output = Checks.given("output", newOutput);
        return this;
    }

    /**
     * Enqueues {@code h = x + residual}, or {@code h = (x + bias) + residual} rounded once, and {@code y = norm(h)}, in its own type, in
     * FP8, or both. FP8 numbers are {@code q = y scale}, from y before it is rounded, clamped to the largest number.
     *
     * @param x [R, C]
     * @param y like x; null for FP8 alone
     * @param quantized FLOAT8_E4M3, scaled by {@link dev.chagres.Scaling#TENSOR}, with scale, C a multiple of 16: [R, C] with
     *     rowwise data alone; with columnwise data [R rounded up to a multiple of 16, C], whose padding becomes 0. Its amax, if it has one,
     *     is raised to the largest magnitude of y before rounding. With an amax alone, without scale and data, that is raised to the
     *     largest magnitude of y as stored. Null: none
     * @throws IllegalArgumentException when shapes, types or devices do not fit, what must go together does not, or what is
     *     written shares memory otherwise
     * @throws IllegalStateException without parameters or statistics
     */
    public void forward(Tensor x, @Nullable Tensor y, @Nullable QuantizedTensor quantized, Stream stream) {
        checkForward(x, y, quantized, stream);
        NormStruct struct = struct(x, h, stream);
        struct.forward(x, bias, residual, beta, y);
        struct.quantized(quantized);
        Status.ops(Ops.ops_residual_norm_forward(struct.segment, stream.handle()), "ops_residual_norm_forward");
    }

    /**
     * Enqueues {@code dh = dresidual + } the gradient of the norm's input, which is rounded to the type of dh before, {@code dgamma[c] =
     * sum over r of dy (h - mean) inverse} and {@code dbeta[c] = sum over r of dy}; the last two may add to what is there.
     *
     * @param dy gradient of y, [R, C]
     * @param input what forward wrote as h; x where it had no residual
     * @param dresidual gradient of h that bypasses the norm, like dy; null: none
     * @param dh like dy; may be dresidual, dy or the input
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory otherwise
     * @throws IllegalStateException without parameters, statistics or gradients
     */
    public void backward(Tensor dy, Tensor input, @Nullable Tensor dresidual, Tensor dh, Stream stream) {
        checkBackward(dy, input, dresidual, dh, stream);
        NormStruct struct = struct(dy, input, stream);
        struct.backward(dy, dresidual, dh, given("gradients", dgamma), dbeta, output.beta());
        Status.ops(Ops.ops_residual_norm_backward(struct.segment, stream.handle()), "ops_residual_norm_backward");
    }

    private NormStruct struct(Tensor rows, @Nullable Tensor input, Stream stream) {
        NormStruct struct = Inside.state(stream).get(NormStruct.ATTACHMENT);
        struct.describe(norm, rows);
        struct.parameters(given("parameters", gamma), input, mean, given("statistics", inverse));
        return struct;
    }

    private static Tensor given(String setter, @Nullable Tensor tensor) {
        if (tensor == null) {
            throw new IllegalStateException(setter + ": expected tensors, got none; call " + setter + "(...) before");
        }
        return tensor;
    }

    private void checkForward(Tensor x, @Nullable Tensor y, @Nullable QuantizedTensor quantized, Stream stream) {
        rows("x", x, stream);
        like("residual", residual, x, stream);
        column("gamma", given("parameters", gamma), x, stream);
        given("statistics", inverse);
        ofLayerNorm("beta", beta);
        ofLayerNorm("mean", mean);
        if (residual == null) {
            absent("h", h, "without a residual h is x");
            absent("bias", bias, "it is added to the sum with a residual, and there is none");
        } else {
            required("h", h, "the sum with the residual goes there");
        }
        if (y == null && (quantized == null || quantized.scale() == null)) {
            throw new IllegalArgumentException("y: expected a place for the norm, got null for y"
                    + (quantized == null ? " and quantized alike" : ", and in quantized no scale to cast by"));
        }
        column("bias", bias, x, stream);
        column("beta", beta, x, stream);
        like("h", h, x, stream);
        like("y", y, x, stream);
        vector("mean", mean, x, stream);
        vector("inverse", inverse, x, stream);
        CallMemory.of(stream)
                .read("x", x)
                .read("residual", residual)
                .read("bias", bias)
                .read("gamma", gamma)
                .read("beta", beta)
                .written("h", h, "x", "residual", null)
                .written("y", y)
                .written("inverse", inverse)
                .written("mean", mean);
        if (quantized != null) {
            NormQuantization.check(quantized, x, stream);
            NormQuantization.apart(quantized, "x", x);
            NormQuantization.apart(quantized, "bias", bias);
            NormQuantization.apart(quantized, "residual", residual);
            NormQuantization.apart(quantized, "gamma", gamma);
            NormQuantization.apart(quantized, "beta", beta);
            NormQuantization.apart(quantized, "h", h);
            NormQuantization.apart(quantized, "y", y);
            NormQuantization.apart(quantized, "mean", mean);
            NormQuantization.apart(quantized, "inverse", inverse);
        }
    }

    private void checkBackward(Tensor dy, Tensor input, @Nullable Tensor dresidual, Tensor dh, Stream stream) {
        rows("dy", dy, stream);
        like("h", Checks.given("h", input), dy, stream);
        given("statistics", inverse);
        given("parameters", gamma);
        ofLayerNorm("mean", mean);
        ofLayerNorm("dbeta", dbeta);
        vector("mean", mean, dy, stream);
        vector("inverse", inverse, dy, stream);
        column("gamma", gamma, dy, stream);
        like("dresidual", dresidual, dy, stream);
        like("dh", Checks.given("dh", dh), dy, stream);
        Checks.vector(stream, "dgamma", given("gradients", dgamma), DType.FLOAT32, dy.size(1));
        if (dbeta != null) {
            Checks.vector(stream, "dbeta", dbeta, DType.FLOAT32, dy.size(1));
        }
        CallMemory.of(stream)
                .read("dy", dy)
                .read("h", input)
                .read("dresidual", dresidual)
                .read("mean", mean)
                .read("inverse", inverse)
                .read("gamma", gamma)
                .written("dh", dh, "dy", "h", "dresidual")
                .written("dbeta", dbeta)
                .written("dgamma", dgamma);
    }

    private void ofLayerNorm(String argument, @Nullable Tensor tensor) {
        if (norm.kind() == Kind.LAYER_NORM) {
            required(argument, tensor, "layer norm has one");
        } else {
            absent(argument, tensor, "RMS norm has none");
        }
    }

    private static void required(String argument, @Nullable Tensor tensor, String reason) {
        if (tensor == null) {
            throw new IllegalArgumentException(argument + ": expected a tensor, for " + reason + ", got null");
        }
    }

    private static void absent(String argument, @Nullable Tensor tensor, String reason) {
        if (tensor != null) {
            throw new IllegalArgumentException(
                    argument + ": expected null, for " + reason + ", got " + Checks.describe(tensor));
        }
    }

    private static void rows(String argument, Tensor tensor, Stream stream) {
        Checks.matrix(stream, argument, tensor);
        if (!takes(tensor)) {
            throw new IllegalArgumentException(argument + ": expected " + LIMITS + ", got " + Checks.describe(tensor)
                    + "; call Elementwise.add and Normalization");
        }
        Checks.aligned(argument, tensor);
    }

    private static void like(String argument, @Nullable Tensor tensor, Tensor model, Stream stream) {
        if (tensor != null) {
            Checks.like(stream, argument, tensor, model);
            Checks.aligned(argument, tensor);
        }
    }

    private static void column(String argument, @Nullable Tensor tensor, Tensor matrix, Stream stream) {
        if (tensor != null) {
            Checks.vector(stream, argument, tensor, matrix.dtype(), matrix.size(1));
            Checks.aligned(argument, tensor);
        }
    }

    private static void vector(String argument, @Nullable Tensor tensor, Tensor matrix, Stream stream) {
        if (tensor != null) {
            Checks.vector(stream, argument, tensor, DType.FLOAT32, matrix.size(0));
        }
    }

    static void apart(String argument, @Nullable Tensor tensor, String otherArgument, @Nullable Tensor other) {
        if (tensor != null && other != null) {
            Checks.apart(argument, tensor, otherArgument, other);
        }
    }
}
