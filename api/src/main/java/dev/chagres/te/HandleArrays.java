package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Two arrays of handles that functions over many tensors read during a call, one pair a device. They grow to the longest list.
 *
 * <p>Threading: the device's thread.
 */
final class HandleArrays implements AutoCloseable {
    private static final DeviceState.Attachment<HandleArrays> ATTACHMENT =
            new DeviceState.Attachment<>(device -> new HandleArrays());

    private Arena arena = Arena.ofShared();
    private MemorySegment first = MemorySegment.NULL;
    private MemorySegment second = MemorySegment.NULL;

    private HandleArrays() {}

    /** Returns the arrays of the stream's device, with room for {@code count} handles each. */
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
        }
    }

    /** Sets entry {@code index} of both. */
    void set(int index, MemorySegment handle, MemorySegment other) {
        first.setAtIndex(ValueLayout.JAVA_LONG, index, handle.address());
        second.setAtIndex(ValueLayout.JAVA_LONG, index, other.address());
    }

    MemorySegment first() {
        return first;
    }

    MemorySegment second() {
        return second;
    }

    @Override
    public void close() {
        arena.close();
    }
}
