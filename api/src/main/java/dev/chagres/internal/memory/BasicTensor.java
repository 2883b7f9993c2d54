package dev.chagres.internal.memory;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.NVTEBasicTensor;
import dev.chagres.bindings.te.NVTEShape;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * One {@code NVTEBasicTensor} (address, type, shape) in scratch memory, to write to TE's handles and read from them.
 *
 * <p>Fill it and {@link #writeTo} a handle, or {@link #readFrom} a handle and ask for its shape; each use overwrites the
 * one before, and none makes garbage.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_set_tensor_param_v2}, {@code nvte_get_tensor_param_v2} in TE's {@code transformer_engine.h}.
 */
public final class BasicTensor {
    private static final long SIZES = NVTEBasicTensor.shape$offset() + NVTEShape.data$offset();
    private static final long RANK = NVTEBasicTensor.shape$offset() + NVTEShape.ndim$offset();

    private final DeviceState device;
    private final MemorySegment record;
    private final MemorySegment sizeWritten;

    BasicTensor(DeviceState device) {
        this.device = device;
        record = NVTEBasicTensor.allocate(device.arena());
        sizeWritten = device.arena().allocate(ValueLayout.JAVA_LONG);
    }

    /** Makes an empty handle. */
    public MemorySegment create() {
        return create(TransformerEngine.NVTE_DELAYED_TENSOR_SCALING());
    }

    /** Makes an empty handle of {@code scalingMode}, TE's number. */
    public MemorySegment create(int scalingMode) {
        Status.te(TransformerEngine.te_create_tensor(scalingMode, device.out()), "te_create_tensor");
        return device.out().get(ValueLayout.ADDRESS, 0);
    }

    /** Sets address and type; {@code dtype} is TE's number. */
    public BasicTensor at(long address, int dtype) {
        record.set(ValueLayout.JAVA_LONG, NVTEBasicTensor.data_ptr$offset(), address);
        NVTEBasicTensor.dtype(record, dtype);
        return this;
    }

    /** Sets the shape to one dimension. */
    public BasicTensor vector(long size) {
        record.set(ValueLayout.JAVA_LONG, RANK, 1);
        record.set(ValueLayout.JAVA_LONG, SIZES, size);
        return this;
    }

    /** Sets the shape to two dimensions. */
    public BasicTensor matrix(long rows, long columns) {
        record.set(ValueLayout.JAVA_LONG, RANK, 2);
        record.set(ValueLayout.JAVA_LONG, SIZES, rows);
        record.set(ValueLayout.JAVA_LONG, SIZES + Long.BYTES, columns);
        return this;
    }

    /** Sets the shape to the first {@code rank} of {@code sizes}. */
    public BasicTensor shape(long[] sizes, int rank) {
        record.set(ValueLayout.JAVA_LONG, RANK, rank);
        MemorySegment.copy(sizes, 0, record, ValueLayout.JAVA_LONG, SIZES, rank);
        return this;
    }

    /** Sets the data of a handle to what this describes. */
    public void writeTo(MemorySegment handle) {
        writeTo(handle, TransformerEngine.kNVTERowwiseData());
    }

    /** Sets one parameter of a handle, TE's number, to what this describes. */
    public void writeTo(MemorySegment handle, int parameter) {
        Status.te(
                TransformerEngine.te_set_tensor_param_v2(handle, parameter, record, NVTEBasicTensor.sizeof()),
                "te_set_tensor_param_v2");
    }

    /** Copies the description of a handle. */
    public BasicTensor readFrom(MemorySegment handle) {
        Status.te(
                TransformerEngine.te_get_tensor_param_v2(
                        handle, TransformerEngine.kNVTERowwiseData(), record, NVTEBasicTensor.sizeof(), sizeWritten),
                "te_get_tensor_param_v2");
        return this;
    }

    /** Returns the number of dimensions. */
    public int rank() {
        return Math.toIntExact(record.get(ValueLayout.JAVA_LONG, RANK));
    }

    /** Returns the size of {@code dimension}, counted from 0. */
    public long size(int dimension) {
        return record.get(ValueLayout.JAVA_LONG, SIZES + Long.BYTES * (long) dimension);
    }

    /** Returns the bytes of all elements. */
    public long byteSize() {
        long bytes = elementBytes(NVTEBasicTensor.dtype(record));
        for (int i = 0; i < rank(); i++) {
            bytes *= size(i);
        }
        return bytes;
    }

    /** Bytes of an element by TE's number of its type; workspaces come in a few types only. */
    private static long elementBytes(int dtype) {
        if (dtype == TransformerEngine.kNVTEInt64()) {
            return 8;
        }
        if (dtype == TransformerEngine.kNVTEFloat32() || dtype == TransformerEngine.kNVTEInt32()) {
            return 4;
        }
        if (dtype == TransformerEngine.kNVTEFloat16()
                || dtype == TransformerEngine.kNVTEBFloat16()
                || dtype == TransformerEngine.kNVTEInt16()) {
            return 2;
        }
        return 1;
    }
}
