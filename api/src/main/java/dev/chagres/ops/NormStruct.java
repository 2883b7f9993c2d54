package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsResidualNorm;
import dev.chagres.internal.Checks;
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

    private final MemorySegment segment;
    private final Multiprocessors multiprocessors;

    private NormStruct(DeviceState device) {
        segment = OpsResidualNorm.allocate(device.arena());
        multiprocessors = device.multiprocessors();
    }

    MemorySegment segment() {
        return segment;
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
}
