package dev.chagres.te;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Writes attributes of one opaque TE object through a reused scratch segment.
 *
 * <p>Threading: the device's thread.
 */
abstract class AttributeWriter {
    private final MemorySegment object;
    private final MemorySegment value;

    AttributeWriter(MemorySegment object, Arena arena) {
        this.object = object;
        value = arena.allocate(ValueLayout.JAVA_LONG);
    }

    MemorySegment object() {
        return object;
    }

    /** Sets {@code attribute} of {@code target} to the first {@code byteSize} bytes of {@code from}. */
    abstract void set(MemorySegment target, int attribute, MemorySegment from, long byteSize);

    void handle(int attribute, MemorySegment handle) {
        number(attribute, handle.address());
    }

    void number(int attribute, long number) {
        value.set(ValueLayout.JAVA_LONG, 0, number);
        set(object, attribute, value, 8);
    }

    void number(int attribute, int number) {
        value.set(ValueLayout.JAVA_INT, 0, number);
        set(object, attribute, value, 4);
    }

    void number(int attribute, float number) {
        value.set(ValueLayout.JAVA_FLOAT, 0, number);
        set(object, attribute, value, 4);
    }

    void flag(int attribute, boolean flag) {
        value.set(ValueLayout.JAVA_BYTE, 0, (byte) (flag ? 1 : 0));
        set(object, attribute, value, 1);
    }
}
