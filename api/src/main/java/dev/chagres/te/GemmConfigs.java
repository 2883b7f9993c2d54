package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * TE's configuration objects for products with an epilogue: one per kind, made once per device. Each call sets the tensors.
 *
 * <p>Threading: the device's thread.
 */
final class GemmConfigs implements AutoCloseable {
    private static final int BIAS = TransformerEngine.kNVTEMatmulConfigBiasTensor();
    private static final int BIAS_GRADIENT = TransformerEngine.kNVTEMatmulConfigDBiasTensor();
    private static final int WITH_GELU = TransformerEngine.kNVTEMatmulConfigWithGELUEpilogue();
    private static final int WITH_GELU_GRADIENT = TransformerEngine.kNVTEMatmulConfigWithDGELUEpilogue();
    private static final int SPLIT_ACCUMULATOR = TransformerEngine.kNVTEMatmulConfigUseSplitAccumulator();
    private static final int MULTIPROCESSORS = TransformerEngine.kNVTEMatmulConfigSMCount();
    private static final int AUXILIARY = TransformerEngine.kNVTEMatmulConfigEpilogueAuxTensor();

    private final DeviceState device;
    private final MemorySegment value;
    private final MemorySegment fast;
    private final MemorySegment bias;
    private final MemorySegment gelu;
    private final MemorySegment biasGelu;
    private final MemorySegment geluGradient;
    private final MemorySegment biasGradient;
    private final MemorySegment split;
    private final MemorySegment splitBias;
    private final MemorySegment[] all;
    /** The number of multiprocessors that the configurations hold now; 0: all. */
    private int multiprocessors;

    GemmConfigs(DeviceState device) {
        this.device = device;
        value = device.arena().allocate(8, 8);
        fast = create();
        bias = create();
        gelu = create();
        biasGelu = create();
        geluGradient = create();
        biasGradient = create();
        split = create();
        splitBias = create();
        all = new MemorySegment[] {fast, bias, gelu, biasGelu, geluGradient, biasGradient, split, splitBias};
        flag(gelu, WITH_GELU);
        flag(biasGelu, WITH_GELU);
        flag(geluGradient, WITH_GELU_GRADIENT);
        flag(split, SPLIT_ACCUMULATOR);
        flag(splitBias, SPLIT_ACCUMULATOR);
    }

    /** Returns these configurations, set to the number of multiprocessors that the device's products may use. */
    GemmConfigs current() {
        int now = device.multiprocessors().ofProducts();
        if (now != multiprocessors) {
            value.set(ValueLayout.JAVA_INT, 0, now);
            for (MemorySegment config : all) {
                set(config, MULTIPROCESSORS, Integer.BYTES);
            }
            multiprocessors = now;
        }
        return this;
    }

    MemorySegment bias(Tensor added) {
        return with(bias, BIAS, added);
    }

    MemorySegment bias(Tensor added, Gemm.Accumulator accumulator) {
        return with(accumulator == Gemm.Accumulator.SPLIT ? splitBias : bias, BIAS, added);
    }

    MemorySegment plain(Gemm.Accumulator accumulator) {
        return accumulator == Gemm.Accumulator.SPLIT ? split : fast;
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
        set(config, attribute, 8);
        return config;
    }

    private void flag(MemorySegment config, int attribute) {
        value.set(ValueLayout.JAVA_BYTE, 0, (byte) 1);
        set(config, attribute, 1);
    }

    /** Sets an attribute to what {@code value} holds. */
    private void set(MemorySegment config, int attribute, long bytes) {
        Status.te(
                TransformerEngine.te_set_matmul_config_attribute(config, attribute, value, bytes),
                "te_set_matmul_config_attribute");
    }

    private MemorySegment create() {
        Status.te(TransformerEngine.te_create_matmul_config(device.out()), "te_create_matmul_config");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    @Override
    public void close() {
        for (MemorySegment config : all) {
            TransformerEngine.te_destroy_matmul_config(config);
        }
    }
}
