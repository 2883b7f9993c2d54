package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;

/**
 * Transformer Engine's handle of the tensors that a scope hands out in one place of its order, one of which is live at a time: made at the
 * first use, written anew when it is to describe something else.
 *
 * <p>Threading: the device's thread.
 */
final class TensorHandle {
    private final long[] sizes = new long[Shape.MAX_RANK];
    private long address;
    private DType dtype = DType.BYTE;
    private int rank;
    private MemorySegment handle = MemorySegment.NULL;
    private boolean stale = true;

    /** Says what the handle is to describe from now on; {@code newSizes} has a 1 for each dimension that is not there. */
    void describe(long newAddress, DType newType, long[] newSizes, int newRank) {
        if (address != newAddress
                || dtype != newType
                || rank != newRank
                || sizes[0] != newSizes[0]
                || sizes[1] != newSizes[1]
                || sizes[2] != newSizes[2]
                || sizes[3] != newSizes[3]) {
            address = newAddress;
            dtype = newType;
            rank = newRank;
            System.arraycopy(newSizes, 0, sizes, 0, sizes.length);
            stale = true;
        }
    }

    /** Returns the handle. */
    MemorySegment of(DeviceState device) {
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
