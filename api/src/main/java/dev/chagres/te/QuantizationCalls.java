package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * What quantizing keeps per device: TE's configuration object, of which each call sets the attributes that changed, and the workspace size
 * of the last bias gradient.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizationCalls implements AutoCloseable {
    static final DeviceState.Attachment<QuantizationCalls> ATTACHMENT =
            new DeviceState.Attachment<>(QuantizationCalls::new);

    private static final int POWER_OF_2 = TransformerEngine.kNVTEQuantizationConfigForcePow2Scales();
    private static final int AMAX_EPSILON = TransformerEngine.kNVTEQuantizationConfigAmaxEpsilon();
    private static final int NOOP = TransformerEngine.kNVTEQuantizationConfigNoopTensor();

    /** The workspace of bias gradients. */
    final DbiasWorkspace dbias = new DbiasWorkspace();

    private final MemorySegment value;
    private final MemorySegment config;
    private QuantizationConfig.Scales scales = QuantizationConfig.Scales.FLOAT32;
    private float amaxEpsilon;
    private long noop;

    private QuantizationCalls(DeviceState device) {
        value = device.arena().allocate(8, 8);
        Status.te(TransformerEngine.te_create_quantization_config(device.out()), "te_create_quantization_config");
        config = device.out().get(ValueLayout.ADDRESS, 0);
    }

    static QuantizationCalls of(Stream stream) {
        return Inside.state(stream).get(ATTACHMENT);
    }

    /** Checks the tensor of {@code wanted}, and returns TE's object with its attributes. */
    MemorySegment config(QuantizationConfig wanted, Stream stream) {
        Checks.given("config", wanted);
        Tensor flag = wanted.noop();
        long handle = 0;
        if (flag != null) {
            handle = Checks.vector(stream, "noop", flag, DType.FLOAT32, 1)
                    .handle()
                    .address();
        }
        if (wanted.scales() != scales) {
            value.set(ValueLayout.JAVA_BYTE, 0, (byte) wanted.scales().ordinal());
            set(POWER_OF_2, 1);
            scales = wanted.scales();
        }
        if (wanted.amaxEpsilon() != amaxEpsilon) {
            value.set(ValueLayout.JAVA_FLOAT, 0, wanted.amaxEpsilon());
            set(AMAX_EPSILON, 4);
            amaxEpsilon = wanted.amaxEpsilon();
        }
        if (handle != noop) {
            value.set(ValueLayout.JAVA_LONG, 0, handle);
            set(NOOP, 8);
            noop = handle;
        }
        return config;
    }

    private void set(int attribute, long size) {
        Status.te(
                TransformerEngine.te_set_quantization_config_attribute(config, attribute, value, size),
                "te_set_quantization_config_attribute");
    }

    @Override
    public void close() {
        TransformerEngine.te_destroy_quantization_config(config);
    }
}
