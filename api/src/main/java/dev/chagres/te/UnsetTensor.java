package dev.chagres.te;

import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * The handle of an empty tensor, one per device, for absent arguments of functions that refuse a null handle.
 *
 * <p>Threading: the device's thread.
 */
final class UnsetTensor implements AutoCloseable {
    static final DeviceState.Attachment<UnsetTensor> ATTACHMENT = new DeviceState.Attachment<>(UnsetTensor::new);

    private final MemorySegment handle;

    private UnsetTensor(DeviceState device) {
        handle = device.basicTensor().create();
    }

    MemorySegment handle() {
        return handle;
    }

    @Override
    public void close() {
        TransformerEngine.te_destroy_tensor(handle);
    }
}
