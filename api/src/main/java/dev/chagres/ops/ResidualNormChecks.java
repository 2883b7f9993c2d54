package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.ops.NormFunction.Kind;
import org.jspecify.annotations.Nullable;

/**
 * Checks of the arguments of {@link ResidualNorm}.
 *
 * <p>Threading: the device's thread.
 */
final class ResidualNormChecks {
    /** FP8 columns, and rows of a transpose, are multiples of this. */
    private static final long STEP = 16;

    private static final String[] PARTS = {"rowwise data", "columnwise data", "scale inverse", "amax"};

    private ResidualNormChecks() {}

    static void forward(
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
        rows("x", x, stream);
        like("residual", residual, x, stream);
        column("gamma", Checks.given("gamma", gamma), x, stream);
        Checks.given("inverse", inverse);
        ofLayerNorm("beta", beta, norm);
        ofLayerNorm("mean", mean, norm);
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
        written("h", h, "gamma", gamma, "beta", beta);
        apart("h", h, "bias", bias);
        apartOrSame("h", h, "x", x);
        apartOrSame("h", h, "residual", residual);
        written("y", y, "x", x, "residual", residual);
        written("y", y, "gamma", gamma, "beta", beta);
        apart("y", y, "h", h);
        apart("y", y, "bias", bias);
        apart("mean", mean, "bias", bias);
        apart("inverse", inverse, "bias", bias);
        statistics("mean", mean, x, residual, gamma, beta, h, y);
        statistics("inverse", inverse, x, residual, gamma, beta, h, y);
        apart("mean", mean, "inverse", inverse);
        if (quantized != null) {
            quantized(quantized, x, stream);
            eachPartApart(quantized, "x", x);
            eachPartApart(quantized, "bias", bias);
            eachPartApart(quantized, "residual", residual);
            eachPartApart(quantized, "gamma", gamma);
            eachPartApart(quantized, "beta", beta);
            eachPartApart(quantized, "h", h);
            eachPartApart(quantized, "y", y);
            eachPartApart(quantized, "mean", mean);
            eachPartApart(quantized, "inverse", inverse);
        }
    }

    static void backward(
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
            Stream stream) {
        rows("dy", dy, stream);
        like("h", Checks.given("h", h), dy, stream);
        Checks.given("inverse", inverse);
        Checks.given("gamma", gamma);
        ofLayerNorm("mean", mean, norm);
        ofLayerNorm("dbeta", dbeta, norm);
        vector("mean", mean, dy, stream);
        vector("inverse", inverse, dy, stream);
        column("gamma", gamma, dy, stream);
        like("dresidual", dresidual, dy, stream);
        like("dh", Checks.given("dh", dh), dy, stream);
        Checks.vector(stream, "dgamma", dgamma, DType.FLOAT32, dy.size(1));
        if (dbeta != null) {
            Checks.vector(stream, "dbeta", dbeta, DType.FLOAT32, dy.size(1));
        }
        Checks.writable("dh", dh);
        apartOrSame("dh", dh, "dy", dy);
        apartOrSame("dh", dh, "h", h);
        apartOrSame("dh", dh, "dresidual", dresidual);
        written("dh", dh, "mean", mean, "inverse", inverse);
        apart("dh", dh, "gamma", gamma);
        gradient("dgamma", dgamma, dy, h, mean, inverse, gamma, dresidual, dh);
        gradient("dbeta", dbeta, dy, h, mean, inverse, gamma, dresidual, dh);
        apart("dgamma", dgamma, "dbeta", dbeta);
    }

    private static void ofLayerNorm(String argument, @Nullable Tensor tensor, NormFunction norm) {
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

    private static void quantized(QuantizedTensor quantized, Tensor x, Stream stream) {
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
                apart("quantized", part, "scale", scale);
                if (i < 2) {
                    Checks.aligned("quantized", part);
                }
            }
            for (int j = 0; part != null && j < i; j++) {
                apart(PARTS[i], part, PARTS[j], part(quantized, j));
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

    private static void eachPartApart(QuantizedTensor quantized, String argument, @Nullable Tensor tensor) {
        for (int i = 0; i < PARTS.length; i++) {
            apart("quantized", part(quantized, i), argument, tensor);
        }
    }

    private static void statistics(
            String argument,
            @Nullable Tensor tensor,
            Tensor x,
            @Nullable Tensor residual,
            Tensor gamma,
            @Nullable Tensor beta,
            @Nullable Tensor h,
            @Nullable Tensor y) {
        written(argument, tensor, "x", x, "residual", residual);
        written(argument, tensor, "gamma", gamma, "beta", beta);
        written(argument, tensor, "h", h, "y", y);
    }

    private static void gradient(
            String argument,
            @Nullable Tensor tensor,
            Tensor dy,
            Tensor h,
            @Nullable Tensor mean,
            Tensor inverse,
            Tensor gamma,
            @Nullable Tensor dresidual,
            Tensor dh) {
        written(argument, tensor, "dy", dy, "h", h);
        written(argument, tensor, "mean", mean, "inverse", inverse);
        written(argument, tensor, "gamma", gamma, "dresidual", dresidual);
        apart(argument, tensor, "dh", dh);
    }

    private static void rows(String argument, Tensor tensor, Stream stream) {
        Checks.matrix(stream, argument, tensor);
        if (!ResidualNorm.takes(tensor)) {
            throw new IllegalArgumentException(argument + ": expected " + ResidualNorm.LIMITS + ", got "
                    + Checks.describe(tensor) + "; call Elementwise.add and Normalization");
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

    /** Checks an optional output. */
    private static void written(
            String argument,
            @Nullable Tensor tensor,
            String firstArgument,
            @Nullable Tensor first,
            String secondArgument,
            @Nullable Tensor second) {
        if (tensor != null) {
            Checks.writable(argument, tensor);
            apart(argument, tensor, firstArgument, first);
            apart(argument, tensor, secondArgument, second);
        }
    }

    private static void apart(String argument, @Nullable Tensor tensor, String otherArgument, @Nullable Tensor other) {
        if (tensor != null && other != null) {
            Checks.apart(argument, tensor, otherArgument, other);
        }
    }

    private static void apartOrSame(
            String argument, @Nullable Tensor tensor, String otherArgument, @Nullable Tensor other) {
        if (tensor != null && other != null) {
            Checks.apartOrSame(argument, tensor, otherArgument, other);
        }
    }
}
