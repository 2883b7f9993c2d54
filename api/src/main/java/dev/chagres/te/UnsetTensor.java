package dev.chagres.te;

import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * A live handle of no tensor, one a device: what TE takes for an absent argument, where it takes a handle of 0 for a fault.
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
