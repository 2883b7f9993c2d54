package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Host arrays for calls of functions over many tensors, kept per device: two of handles, the second of which may hold other 64-bit numbers,
 * and one of 32-bit numbers. They grow to the longest list.
 *
 * <p>Threading: the device's thread.
 */
final class HandleArrays implements AutoCloseable {
    private static final DeviceState.Attachment<HandleArrays> ATTACHMENT =
            new DeviceState.Attachment<>(device -> new HandleArrays());

    private Arena arena = Arena.ofShared();
    private MemorySegment first = MemorySegment.NULL;
    private MemorySegment second = MemorySegment.NULL;
    private MemorySegment numbers = MemorySegment.NULL;

    private HandleArrays() {}

    /** Returns the arrays of the stream's device, with room for {@code count} entries each. */
    static HandleArrays of(Stream stream, int count) {
        HandleArrays arrays = Inside.state(stream).get(ATTACHMENT);
        arrays.reserve(count);
        return arrays;
    }

    private void reserve(int count) {
        if (first.byteSize() < (long) count * Long.BYTES) {
            arena.close();
            arena = Arena.ofShared();
            first = arena.allocate(ValueLayout.JAVA_LONG, count);
            second = arena.allocate(ValueLayout.JAVA_LONG, count);
            numbers = arena.allocate(ValueLayout.JAVA_INT, count);
        }
    }

    /** Sets entry {@code index} of both arrays of handles. */
    void set(int index, MemorySegment handle, MemorySegment other) {
        first.setAtIndex(ValueLayout.JAVA_LONG, index, handle.address());
        second.setAtIndex(ValueLayout.JAVA_LONG, index, other.address());
    }

    /** Sets entry {@code index} of all three arrays. */
    void set(int index, MemorySegment handle, long other, int number) {
        first.setAtIndex(ValueLayout.JAVA_LONG, index, handle.address());
        second.setAtIndex(ValueLayout.JAVA_LONG, index, other);
        numbers.setAtIndex(ValueLayout.JAVA_INT, index, number);
    }

    MemorySegment first() {
        return first;
    }

    MemorySegment second() {
        return second;
    }

    MemorySegment numbers() {
        return numbers;
    }

    @Override
    public void close() {
        arena.close();
    }

    /** The handle of an empty tensor, one per device, for absent arguments of functions that refuse a null handle. */
    static final class UnsetTensor implements AutoCloseable {
        static final DeviceState.Attachment<UnsetTensor> ATTACHMENT = new DeviceState.Attachment<>(UnsetTensor::new);

        final MemorySegment handle;

        private UnsetTensor(DeviceState device) {
            handle = device.basicTensor().create();
        }

        @Override
        public void close() {
            TransformerEngine.te_destroy_tensor(handle);
        }
    }
}
