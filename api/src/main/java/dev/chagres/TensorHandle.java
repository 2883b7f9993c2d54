package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * Transformer Engine's handle of one tensor object: made at the first use, written anew when the tensor was handed out otherwise.
 *
 * <p>Threading: the device's thread.
 */
final class TensorHandle {
    private MemorySegment handle = MemorySegment.NULL;
    private boolean stale = true;

    /** Says that address, type or shape of the tensor have changed. */
    void outdate() {
        stale = true;
    }

    /** Returns the handle with this address, type and shape. */
    MemorySegment of(DeviceState device, long address, DType dtype, long[] sizes, int rank) {
        if (stale) {
            BasicTensor description = device.basicTensor();
            int code = dtype.code();
            if (handle.address() == 0) {
                handle = description.create();
            }
            description.at(address, code).shape(sizes, rank).writeTo(handle);
            stale = false;
        }
        return handle;
    }

    /** Gives the handle back; the next use makes another. */
    void destroy() {
        if (handle.address() != 0) {
            MemorySegment dead = handle;
            handle = MemorySegment.NULL;
            stale = true;
            Status.te(TransformerEngine.te_destroy_tensor(dead), "te_destroy_tensor");
        }
    }
}
