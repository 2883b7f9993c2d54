package dev.chagres.internal;

import dev.chagres.Stream;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The three matrix products of a linear layer {@code y = x W^T + b}, through {@code nvte_cublas_gemm_v2}.
 *
 * <p>cuBLAS is column-major; seen row-major, its product of {@code A} and {@code B} is {@code D [n, m]} with {@code m}
 * from {@code A} and {@code n} from {@code B}. Operands are checked by the callers.
 *
 * <p>Threading: the device's thread.
 */
public final class MatrixProduct {
    private static final int BIAS = TransformerEngine.kNVTEMatmulConfigBiasTensor();
    private static final int BIAS_GRADIENT = TransformerEngine.kNVTEMatmulConfigDBiasTensor();
    private static final int WITH_GELU = TransformerEngine.kNVTEMatmulConfigWithGELUEpilogue();
    private static final int WITH_DGELU = TransformerEngine.kNVTEMatmulConfigWithDGELUEpilogue();
    private static final int AUX = TransformerEngine.kNVTEMatmulConfigEpilogueAuxTensor();

    private final DeviceState device;
    private final MemorySegment value;
    private final MemorySegment biasConfig;
    private final MemorySegment geluConfig;
    private final MemorySegment gradientOfGeluConfig;
    private final MemorySegment biasGradientConfig;

    MatrixProduct(DeviceState device) {
        this.device = device;
        value = device.arena().allocate(8, 8);
        biasConfig = create();
        geluConfig = create();
        gradientOfGeluConfig = create();
        biasGradientConfig = create();
        flag(geluConfig, WITH_GELU);
        flag(gradientOfGeluConfig, WITH_DGELU);
    }

    /** {@code y = x W^T}: x [T, in], w [out, in], y [T, out]. */
    public void forward(Stream stream, TensorCell x, TensorCell w, TensorCell y) {
        call(stream, 1, w, 0, x, device.zero(), y, MemorySegment.NULL);
    }

    /** {@code y = x W^T + b}: b [out]. */
    public void forwardBias(Stream stream, TensorCell x, TensorCell w, TensorCell b, TensorCell y) {
        set(biasConfig, BIAS, b.handle());
        call(stream, 1, w, 0, x, device.zero(), y, biasConfig);
    }

    /** {@code p = x W^T + b; y = gelu(p)}: p like y. */
    public void forwardBiasGelu(Stream stream, TensorCell x, TensorCell w, TensorCell b, TensorCell p, TensorCell y) {
        set(geluConfig, BIAS, b.handle());
        set(geluConfig, AUX, p.handle());
        call(stream, 1, w, 0, x, device.zero(), y, geluConfig);
    }

    /** {@code dx = dy W}: dy [T, out], dx [T, in]. */
    public void inputGradient(Stream stream, TensorCell dy, TensorCell w, TensorCell dx) {
        call(stream, 0, w, 0, dy, device.zero(), dx, MemorySegment.NULL);
    }

    /** {@code dp = (dy W) gelu'(p)}: p and dp [T, in]. */
    public void inputGradientGelu(Stream stream, TensorCell dy, TensorCell w, TensorCell p, TensorCell dp) {
        set(gradientOfGeluConfig, AUX, p.handle());
        call(stream, 0, w, 0, dy, device.zero(), dp, gradientOfGeluConfig);
    }

    /** {@code dw = beta dw + dy^T x}: x [T, in], dy [T, out], dw [out, in]; beta 1 adds, 0 overwrites. */
    public void weightGradient(Stream stream, TensorCell x, TensorCell dy, TensorCell dw, float beta) {
        call(stream, 0, x, 1, dy, beta == 0 ? device.zero() : device.one(), dw, MemorySegment.NULL);
    }

    /** {@code dw = dy^T x; db = sum over rows of dy}: db [out], FLOAT32 like dw. */
    public void weightAndBiasGradient(Stream stream, TensorCell x, TensorCell dy, TensorCell dw, TensorCell db) {
        set(biasGradientConfig, BIAS_GRADIENT, db.handle());
        call(stream, 0, x, 1, dy, device.zero(), dw, biasGradientConfig);
    }

    private void call(
            Stream stream,
            int transposeA,
            TensorCell a,
            int transposeB,
            TensorCell b,
            MemorySegment beta,
            TensorCell d,
            MemorySegment config) {
        if (d.count() == 0) {
            // TE refuses a product without rows.
            return;
        }
        MemorySegment destination = d.handle();
        Status.te(
                TransformerEngine.te_cublas_gemm_v2(
                        transposeA,
                        transposeB,
                        device.one(),
                        a.handle(),
                        b.handle(),
                        beta,
                        destination,
                        destination,
                        stream.workspace().products(),
                        config,
                        stream.handle()),
                "nvte_cublas_gemm_v2");
    }

    private MemorySegment create() {
        Status.te(TransformerEngine.te_create_matmul_config(device.out()), "nvte_create_matmul_config");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    private void set(MemorySegment config, int attribute, MemorySegment handle) {
        value.set(ValueLayout.JAVA_LONG, 0, handle.address());
        Status.te(
                TransformerEngine.te_set_matmul_config_attribute(config, attribute, value, 8),
                "nvte_set_matmul_config_attribute");
    }

    private void flag(MemorySegment config, int attribute) {
        value.set(ValueLayout.JAVA_BYTE, 0, (byte) 1);
        Status.te(
                TransformerEngine.te_set_matmul_config_attribute(config, attribute, value, 1),
                "nvte_set_matmul_config_attribute");
    }

    void close() {
        TransformerEngine.te_destroy_matmul_config(biasConfig);
        TransformerEngine.te_destroy_matmul_config(geluConfig);
        TransformerEngine.te_destroy_matmul_config(gradientOfGeluConfig);
        TransformerEngine.te_destroy_matmul_config(biasGradientConfig);
    }
}
