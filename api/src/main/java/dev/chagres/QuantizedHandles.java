package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.memory.BasicTensor;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Transformer Engine's handles of one place among the quantized tensors of a scope. A handle has its scaling for life: there is one a
 * scaling, made when it is asked for first.
 *
 * <p>Threading: the device's thread.
 */
final class QuantizedHandles {
    private final DeviceState device;
    private final @Nullable QuantizedHandle[] handles = new QuantizedHandle[Scaling.values().length];

    QuantizedHandles(DeviceState device) {
        this.device = device;
    }

    QuantizedHandle of(Scaling scaling) {
        QuantizedHandle handle = handles[scaling.ordinal()];
        if (handle == null) {
            handle = new QuantizedHandle(device, scaling);
            handles[scaling.ordinal()] = handle;
        }
        return handle;
    }

    void destroy() {
        for (int i = 0; i < handles.length; i++) {
            QuantizedHandle dead = handles[i];
            handles[i] = null;
            if (dead != null) {
                dead.destroy();
            }
        }
    }

    /**
     * Transformer Engine's handle of a quantized tensor, and what each of its parameters was set to last: a parameter is set again
     * only when address, type or shape of its tensor changed.
     */
    static final class QuantizedHandle {
        private static final int PARAMETERS = TransformerEngine.kNVTEColumnwiseScaleInv() + 1;

        /** A parameter that was never set. */
        private static final long UNKNOWN = -1;

        private final DeviceState device;
        private final MemorySegment handle;
        private final long[] addresses = new long[PARAMETERS];
        private final long[] outer = new long[PARAMETERS];
        private final long[] inner = new long[PARAMETERS];
        private final DType[] types = new DType[PARAMETERS];

        QuantizedHandle(DeviceState device, Scaling scaling) {
            this.device = device;
            handle = device.basicTensor().create(scaling.code());
            Arrays.fill(addresses, UNKNOWN);
            Arrays.fill(types, DType.BYTE);
        }

        MemorySegment segment() {
            return handle;
        }

        /** Sets a parameter, TE's number, to {@code tensor}, of one or two dimensions; null is absent. */
        void set(int parameter, @Nullable Tensor tensor, DType dtype) {
            long address = tensor == null ? 0 : tensor.address();
            long rows = tensor == null ? 0 : tensor.size(0);
            // A vector has no second size; -1 tells it from a matrix of no columns.
            long columns = tensor == null || tensor.rank() == 1 ? -1 : tensor.size(1);
            if (addresses[parameter] == address
                    && outer[parameter] == rows
                    && inner[parameter] == columns
                    && types[parameter] == dtype) {
                return;
            }
            BasicTensor description = device.basicTensor().at(address, dtype.code());
            (columns < 0 ? description.vector(rows) : description.matrix(rows, columns)).writeTo(handle, parameter);
            addresses[parameter] = address;
            outer[parameter] = rows;
            inner[parameter] = columns;
            types[parameter] = dtype;
        }

        void destroy() {
            Status.te(TransformerEngine.te_destroy_tensor(handle), "te_destroy_tensor");
        }
    }
}
