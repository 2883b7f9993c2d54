package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Copies between host and device, with the conversions that Java needs for 16-bit floats.
 *
 * <p>Threading: the device's thread.
 */
public final class Transfer {
    /** The most elements that a Java array holds on every JVM. */
    public static final long MAX_ARRAY_LENGTH = Integer.MAX_VALUE - 8;

    private static final int HOST_TO_DEVICE = 1;
    private static final int DEVICE_TO_HOST = 2;
    private static final int DEVICE_TO_DEVICE = 3;

    private Transfer() {}

    /** Copies floats into a tensor of floats and waits. */
    public static void fromFloats(TensorCell cell, MemorySegment stream, float[] values) {
        ensureFloats(cell);
        ensureCount(cell, values.length);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(cell.byteSize(), 16);
            switch (cell.dtype()) {
                case FLOAT32 -> MemorySegment.copy(values, 0, host, ValueLayout.JAVA_FLOAT, 0, values.length);
                case BFLOAT16 -> {
                    for (int i = 0; i < values.length; i++) {
                        host.setAtIndex(ValueLayout.JAVA_SHORT, i, floatToBfloat16(values[i]));
                    }
                }
                default -> {
                    for (int i = 0; i < values.length; i++) {
                        host.setAtIndex(ValueLayout.JAVA_SHORT, i, Float.floatToFloat16(values[i]));
                    }
                }
            }
            fromHost(cell, stream, host);
            synchronize(stream);
        }
    }

    /** Copies ints into an INT32 tensor and waits. */
    public static void fromInts(TensorCell cell, MemorySegment stream, int[] values) {
        ensureInts(cell);
        ensureCount(cell, values.length);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(cell.byteSize(), 16);
            MemorySegment.copy(values, 0, host, ValueLayout.JAVA_INT, 0, values.length);
            fromHost(cell, stream, host);
            synchronize(stream);
        }
    }

    /** Waits and returns the elements of a tensor of floats. */
    public static float[] toFloats(TensorCell cell, MemorySegment stream) {
        ensureFloats(cell);
        float[] values = new float[arrayLength(cell)];
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(cell.byteSize(), 16);
            toHost(cell, stream, host);
            synchronize(stream);
            switch (cell.dtype()) {
                case FLOAT32 -> MemorySegment.copy(host, ValueLayout.JAVA_FLOAT, 0, values, 0, values.length);
                case BFLOAT16 -> {
                    for (int i = 0; i < values.length; i++) {
                        values[i] = Float.intBitsToFloat(host.getAtIndex(ValueLayout.JAVA_SHORT, i) << 16);
                    }
                }
                default -> {
                    for (int i = 0; i < values.length; i++) {
                        values[i] = Float.float16ToFloat(host.getAtIndex(ValueLayout.JAVA_SHORT, i));
                    }
                }
            }
        }
        return values;
    }

    /** Waits and returns the elements of an INT32 tensor. */
    public static int[] toInts(TensorCell cell, MemorySegment stream) {
        ensureInts(cell);
        int[] values = new int[arrayLength(cell)];
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(cell.byteSize(), 16);
            toHost(cell, stream, host);
            synchronize(stream);
            MemorySegment.copy(host, ValueLayout.JAVA_INT, 0, values, 0, values.length);
        }
        return values;
    }

    /** Enqueues a copy of the first bytes of {@code host}. */
    public static void fromHost(TensorCell cell, MemorySegment stream, MemorySegment host) {
        ensureBytes("source", cell, host);
        cell.ensureWritable();
        Status.cuda(
                CudaRuntime.cudaMemcpyAsync(cell.pointer(), host, cell.byteSize(), HOST_TO_DEVICE, stream),
                "cudaMemcpyAsync");
    }

    /** Enqueues a copy to the first bytes of {@code host}. */
    public static void toHost(TensorCell cell, MemorySegment stream, MemorySegment host) {
        ensureBytes("target", cell, host);
        Status.cuda(
                CudaRuntime.cudaMemcpyAsync(host, cell.pointer(), cell.byteSize(), DEVICE_TO_HOST, stream),
                "cudaMemcpyAsync");
    }

    /** Enqueues a copy of {@code source}, of the same type and count, on the same device. */
    public static void fromDevice(TensorCell cell, MemorySegment stream, TensorCell source) {
        if (source.dtype() != cell.dtype() || source.count() != cell.count()) {
            throw new IllegalArgumentException("source: expected " + cell.count() + " elements of " + cell.dtype()
                    + ", got " + source.count() + " of " + source.dtype());
        }
        cell.ensureWritable();
        if (source.scope().device() != cell.scope().device()) {
            throw new IllegalArgumentException("source: expected a tensor of device "
                    + cell.scope().device().index() + ", got one of device "
                    + source.scope().device().index());
        }
        Checks.apart("this tensor", cell, "source", source);
        Status.cuda(
                CudaRuntime.cudaMemcpyAsync(
                        cell.pointer(), source.pointer(), cell.byteSize(), DEVICE_TO_DEVICE, stream),
                "cudaMemcpyAsync");
    }

    /** Enqueues zeroing of every byte. */
    public static void zero(TensorCell cell, MemorySegment stream) {
        cell.ensureWritable();
        Status.cuda(CudaRuntime.cudaMemsetAsync(cell.pointer(), 0, cell.byteSize(), stream), "cudaMemsetAsync");
    }

    /** Returns {@code value} rounded to nearest even; NaN stays NaN. */
    public static short floatToBfloat16(float value) {
        int bits = Float.floatToRawIntBits(value);
        if (Float.isNaN(value)) {
            return (short) ((bits >>> 16) | 0x40);
        }
        return (short) ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
    }

    private static void synchronize(MemorySegment stream) {
        Status.cuda(CudaRuntime.cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }

    /** Checks liveness first: a closed tensor's size means nothing. */
    private static int arrayLength(TensorCell cell) {
        cell.ensureUsable();
        if (cell.count() > MAX_ARRAY_LENGTH) {
            throw new IllegalArgumentException("tensor: expected at most " + MAX_ARRAY_LENGTH
                    + " elements, which a Java array holds, got " + cell.dtype() + cell.shape()
                    + "; read a view of a part, or copyTo a HostBuffer");
        }
        return (int) cell.count();
    }

    private static void ensureFloats(TensorCell cell) {
        if (!cell.dtype().isFloat()) {
            throw new IllegalArgumentException(
                    "tensor: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got " + cell.dtype());
        }
    }

    private static void ensureInts(TensorCell cell) {
        if (cell.dtype() != DType.INT32) {
            throw new IllegalArgumentException("tensor: expected INT32, which int values are for, got " + cell.dtype()
                    + cell.shape() + "; floats are written 1f, 2f");
        }
    }

    private static void ensureCount(TensorCell cell, int count) {
        if (count != cell.count()) {
            throw new IllegalArgumentException(
                    "values: expected " + cell.count() + " for " + cell.dtype() + cell.shape() + ", got " + count);
        }
    }

    private static void ensureBytes(String argument, TensorCell cell, MemorySegment host) {
        if (host.byteSize() < cell.byteSize()) {
            throw new IllegalArgumentException(argument + ": expected at least " + cell.byteSize() + " bytes for "
                    + cell.dtype() + cell.shape() + ", got " + host.byteSize());
        }
    }
}
