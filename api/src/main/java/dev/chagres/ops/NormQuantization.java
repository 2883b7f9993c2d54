package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the output in eight bits of {@link ResidualNorm}.
 *
 * <p>Threading: the device's thread.
 */
final class NormQuantization {
    /** FP8 columns, and rows of a transpose, are multiples of this. */
    private static final long STEP = 16;

    private static final String[] PARTS = {"rowwise data", "columnwise data", "scale inverse", "amax"};

    private NormQuantization() {}

    static void check(QuantizedTensor quantized, Tensor x, Stream stream) {
        quantized.handle();
        Tensor amax = quantized.amax();
        boolean alone = quantized.scale() == null && quantized.rowwise() == null && quantized.columnwise() == null;
        if (!alone || amax == null) {
            data(quantized, x, stream);
            return;
        }
        if (quantized.rows() != x.size(0) || quantized.columns() != x.size(1)) {
            throw new IllegalArgumentException(
                    "quantized: expected [" + x.size(0) + ", " + x.size(1) + "], got " + quantized);
        }
        Checks.on(stream, "quantized", amax);
        Checks.writable("quantized", amax);
    }

    private static void data(QuantizedTensor quantized, Tensor x, Stream stream) {
        long filled = (x.size(0) + STEP - 1) / STEP * STEP;
        boolean both = quantized.columnwise() != null;
        boolean rowsFit = quantized.rows() == filled || (!both && quantized.rows() == x.size(0));
        if (quantized.dtype() != DType.FLOAT8_E4M3
                || quantized.scaling() != Scaling.TENSOR
                || quantized.columns() != x.size(1)
                || !rowsFit) {
            throw new IllegalArgumentException("quantized: expected FLOAT8_E4M3[" + (both ? filled : x.size(0)) + ", "
                    + x.size(1) + "] TENSOR, got " + quantized);
        }
        if (x.size(1) % STEP != 0) {
            throw new IllegalArgumentException(
                    "quantized: expected a multiple of " + STEP + " columns for FP8, got " + quantized);
        }
        Tensor scale = quantized.scale();
        if (scale == null || (!both && quantized.rowwise() == null)) {
            throw new IllegalArgumentException("quantized: expected data and a scale, got " + quantized
                    + " without; set them by allocateRowwise or allocateColumnwise, and scale");
        }
        Checks.on(stream, "quantized", scale);
        QuantizedChecks.oneScaleInverse("quantized", quantized);
        for (int i = 0; i < PARTS.length; i++) {
            Tensor part = part(quantized, i);
            if (part != null) {
                Checks.on(stream, "quantized", part);
                Checks.writable("quantized", part);
                ResidualNorm.apart("quantized", part, "scale", scale);
                if (i < 2) {
                    Checks.aligned("quantized", part);
                }
            }
            for (int j = 0; part != null && j < i; j++) {
                ResidualNorm.apart(PARTS[i], part, PARTS[j], part(quantized, j));
            }
        }
    }

    private static @Nullable Tensor part(QuantizedTensor quantized, int index) {
        return switch (index) {
            case 0 -> quantized.rowwise();
            case 1 -> quantized.columnwise();
            case 2 -> scaleInverse(quantized);
            default -> quantized.amax();
        };
    }

    /** Returns the scale inverse that both copies share. */
    static @Nullable Tensor scaleInverse(QuantizedTensor quantized) {
        Tensor rowwise = quantized.rowwiseScaleInverse();
        return rowwise == null ? quantized.columnwiseScaleInverse() : rowwise;
    }

    /** Checks that no part overlaps another tensor. */
    static void apart(QuantizedTensor quantized, String argument, @Nullable Tensor tensor) {
        for (int i = 0; i < PARTS.length; i++) {
            ResidualNorm.apart("quantized", part(quantized, i), argument, tensor);
        }
    }
}
