package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * TE's configuration objects of products that something follows: one a kind, made once a device. Each call sets the
 * tensors.
 *
 * <p>Threading: the device's thread.
 */
final class GemmConfigs implements AutoCloseable {
    private static final int BIAS = TransformerEngine.kNVTEMatmulConfigBiasTensor();
    private static final int BIAS_GRADIENT = TransformerEngine.kNVTEMatmulConfigDBiasTensor();
    private static final int WITH_GELU = TransformerEngine.kNVTEMatmulConfigWithGELUEpilogue();
    private static final int WITH_GELU_GRADIENT = TransformerEngine.kNVTEMatmulConfigWithDGELUEpilogue();
    private static final int SPLIT_ACCUMULATOR = TransformerEngine.kNVTEMatmulConfigUseSplitAccumulator();
    private static final int AUXILIARY = TransformerEngine.kNVTEMatmulConfigEpilogueAuxTensor();

    private final DeviceState device;
    private final MemorySegment value;
    private final MemorySegment bias;
    private final MemorySegment gelu;
    private final MemorySegment biasGelu;
    private final MemorySegment geluGradient;
    private final MemorySegment biasGradient;
    private final MemorySegment split;
    private final MemorySegment splitBias;

    GemmConfigs(DeviceState device) {
        this.device = device;
        value = device.arena().allocate(8, 8);
        bias = create();
        gelu = create();
        biasGelu = create();
        geluGradient = create();
        biasGradient = create();
        split = create();
        splitBias = create();
        flag(gelu, WITH_GELU);
        flag(biasGelu, WITH_GELU);
        flag(geluGradient, WITH_GELU_GRADIENT);
        flag(split, SPLIT_ACCUMULATOR);
        flag(splitBias, SPLIT_ACCUMULATOR);
    }

    MemorySegment bias(Tensor added) {
        return with(bias, BIAS, added);
    }

    MemorySegment bias(Tensor added, Gemm.Accumulator accumulator) {
        return with(accumulator == Gemm.Accumulator.SPLIT ? splitBias : bias, BIAS, added);
    }

    MemorySegment plain(Gemm.Accumulator accumulator) {
        return accumulator == Gemm.Accumulator.SPLIT ? split : MemorySegment.NULL;
    }

    MemorySegment gelu(Tensor preGelu) {
        return with(gelu, AUXILIARY, preGelu);
    }

    MemorySegment biasGelu(Tensor added, Tensor preGelu) {
        with(biasGelu, BIAS, added);
        return with(biasGelu, AUXILIARY, preGelu);
    }

    MemorySegment geluGradient(Tensor preGelu) {
        return with(geluGradient, AUXILIARY, preGelu);
    }

    MemorySegment biasGradient(Tensor dbias) {
        return with(biasGradient, BIAS_GRADIENT, dbias);
    }

    /** Returns a host float 0. */
    MemorySegment zero() {
        return device.zero();
    }

    private MemorySegment with(MemorySegment config, int attribute, Tensor tensor) {
        value.set(ValueLayout.JAVA_LONG, 0, tensor.handle().address());
        Status.te(
                TransformerEngine.te_set_matmul_config_attribute(config, attribute, value, 8),
                "te_set_matmul_config_attribute");
        return config;
    }

    private void flag(MemorySegment config, int attribute) {
        value.set(ValueLayout.JAVA_BYTE, 0, (byte) 1);
        Status.te(
                TransformerEngine.te_set_matmul_config_attribute(config, attribute, value, 1),
                "te_set_matmul_config_attribute");
    }

    private MemorySegment create() {
        Status.te(TransformerEngine.te_create_matmul_config(device.out()), "te_create_matmul_config");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    public void close() {
        TransformerEngine.te_destroy_matmul_config(bias);
        TransformerEngine.te_destroy_matmul_config(gelu);
        TransformerEngine.te_destroy_matmul_config(biasGelu);
        TransformerEngine.te_destroy_matmul_config(geluGradient);
        TransformerEngine.te_destroy_matmul_config(biasGradient);
        TransformerEngine.te_destroy_matmul_config(split);
        TransformerEngine.te_destroy_matmul_config(splitBias);
    }
}
