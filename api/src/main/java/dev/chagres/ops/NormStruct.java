package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsResidualNorm;
import dev.chagres.internal.Checks;
import dev.chagres.internal.QuantizedChecks;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Multiprocessors;
import dev.chagres.ops.NormFunction.Kind;
import dev.chagres.te.Normalization.Gamma;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The native struct of a norm's call, made once per device and filled anew by each call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsResidualNorm} in {@code ops.h}.
 */
final class NormStruct {
    static final DeviceState.Attachment<NormStruct> ATTACHMENT = new DeviceState.Attachment<>(NormStruct::new);

    final MemorySegment segment;
    private final Multiprocessors multiprocessors;

    private NormStruct(DeviceState device) {
        segment = OpsResidualNorm.allocate(device.arena());
        multiprocessors = device.multiprocessors();
    }

    /** Fills in the norm, the shape of {@code rows}, and the number of multiprocessors to use. */
    void describe(NormFunction norm, Tensor rows) {
        OpsResidualNorm.kind(segment, norm.kind() == Kind.LAYER_NORM ? Ops.OPS_LAYER_NORM() : Ops.OPS_RMS_NORM());
        OpsResidualNorm.center(segment, norm.gamma() == Gamma.ZERO_CENTERED ? 1 : 0);
        OpsResidualNorm.epsilon(segment, norm.epsilon());
        OpsResidualNorm.rows(segment, rows.size(0));
        OpsResidualNorm.columns(segment, rows.size(1));
        OpsResidualNorm.dtype(segment, rows.dtype().code());
        OpsResidualNorm.multiprocessors(segment, multiprocessors.ofNorms());
    }

    /** Fills in what forward and backward have in common. */
    void parameters(Tensor gamma, @Nullable Tensor h, @Nullable Tensor mean, Tensor inverse) {
        OpsResidualNorm.gamma(segment, gamma.address());
        OpsResidualNorm.h(segment, Checks.addressOrNull(h));
        OpsResidualNorm.mean(segment, Checks.addressOrNull(mean));
        OpsResidualNorm.inverse(segment, inverse.address());
    }

    /** Fills in forward's inputs, and its output y. */
    void forward(
            Tensor x, @Nullable Tensor bias, @Nullable Tensor residual, @Nullable Tensor beta, @Nullable Tensor y) {
        OpsResidualNorm.x(segment, x.address());
        OpsResidualNorm.bias(segment, Checks.addressOrNull(bias));
        OpsResidualNorm.residual(segment, Checks.addressOrNull(residual));
        OpsResidualNorm.beta(segment, Checks.addressOrNull(beta));
        OpsResidualNorm.y(segment, Checks.addressOrNull(y));
    }

    /** Fills in forward's output in eight bits; null: none. */
    void quantized(@Nullable QuantizedTensor quantized) {
        Tensor inverse = quantized == null ? null : NormQuantization.scaleInverse(quantized);
        OpsResidualNorm.y8(segment, quantized == null ? 0 : Checks.addressOrNull(quantized.rowwise()));
        OpsResidualNorm.y8_transposed(segment, quantized == null ? 0 : Checks.addressOrNull(quantized.columnwise()));
        OpsResidualNorm.scale(segment, quantized == null ? 0 : Checks.addressOrNull(quantized.scale()));
        OpsResidualNorm.amax(segment, quantized == null ? 0 : Checks.addressOrNull(quantized.amax()));
        OpsResidualNorm.scale_inverse(segment, Checks.addressOrNull(inverse));
        OpsResidualNorm.filled_rows(segment, quantized == null ? 0 : quantized.rows());
    }

    /** Fills in what only backward has. */
    void backward(
            Tensor dy, @Nullable Tensor dresidual, Tensor dh, Tensor dgamma, @Nullable Tensor dbeta, float accumulate) {
        OpsResidualNorm.dy(segment, dy.address());
        OpsResidualNorm.dresidual(segment, Checks.addressOrNull(dresidual));
        OpsResidualNorm.dh(segment, dh.address());
        OpsResidualNorm.dgamma(segment, dgamma.address());
        OpsResidualNorm.dbeta(segment, Checks.addressOrNull(dbeta));
        OpsResidualNorm.accumulate(segment, accumulate);
    }

    /** Checks of the output in eight bits of {@link ResidualNorm}. */
    static final class NormQuantization {
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
                throw new IllegalArgumentException("quantized: expected FLOAT8_E4M3[" + (both ? filled : x.size(0))
                        + ", " + x.size(1) + "] TENSOR, got " + quantized);
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
}
