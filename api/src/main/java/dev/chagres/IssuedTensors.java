package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.ScopeState;
import dev.chagres.internal.memory.Turns;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * The tensor objects that a scope hands out, in their order. Each place in the order has several, which restarts hand out in turn: a step
 * makes no garbage, and an object of an earlier step stays closed until its turn comes again.
 *
 * <p>The objects of one place share Transformer Engine's handle, of which a process has a limited number: only one of them is live.
 *
 * <p>Threading: the device's thread.
 */
final class IssuedTensors {
    private final ScopeState state;
    private final Turns<List<Tensor>> tensors = new Turns<>(ArrayList::new);
    private final Turns<List<QuantizedTensor>> quantized = new Turns<>(ArrayList::new);
    private int cursor;
    private int cursorQuantized;

    IssuedTensors(ScopeState state) {
        this.state = state;
    }

    Tensor next() {
        List<Tensor> own = tensors.present();
        if (cursor == own.size()) {
            // Those of all turns, so that the steps after this one make none.
            TensorHandle handle = new TensorHandle();
            tensors.forEach(list -> list.add(new Tensor(state, handle)));
        }
        return own.get(cursor++);
    }

    QuantizedTensor nextQuantized() {
        List<QuantizedTensor> own = quantized.present();
        if (cursorQuantized == own.size()) {
            QuantizedHandles handles = new QuantizedHandles(state.device());
            quantized.forEach(list -> list.add(new QuantizedTensor(state, handles)));
        }
        return own.get(cursorQuantized++);
    }

    /** Begins again with the first place, and the next object of each. */
    void restart() {
        tensors.next();
        quantized.next();
        cursor = 0;
        cursorQuantized = 0;
    }

    /** Frees the objects' handles of Transformer Engine. */
    void destroyHandles() {
        tensors.present().forEach(Tensor::destroyHandle);
        quantized.forEach(list -> list.forEach(QuantizedTensor::destroy));
    }

    /**
     * Transformer Engine's handle of the tensors that a scope hands out in one place of its order, one of which is live at a time: made at the
     * first use, written anew when it is to describe something else.
     */
    static final class TensorHandle {
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
}
