package dev.chagres.te;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Writes attributes of one opaque TE object through a reused scratch segment.
 *
 * <p>Threading: the device's thread.
 */
abstract class AttributeWriter {
    /** More attributes than TE's objects have. */
    static final int MOST_ATTRIBUTES = 64;

    final MemorySegment object;
    private final MemorySegment value;
    /** The 64-bit attributes, addresses included, that the object has now. */
    private final long[] numbers = new long[MOST_ATTRIBUTES];

    /** Whether the object's diagonal ends at the bottom right; TE's default. */
    private boolean bottomRight = true;

    private final boolean[] written = new boolean[MOST_ATTRIBUTES];

    AttributeWriter(MemorySegment object, Arena arena) {
        this.object = object;
        value = arena.allocate(ValueLayout.JAVA_LONG);
    }

    /** Sets {@code attribute} of {@code target} to the first {@code byteSize} bytes of {@code from}. */
    abstract void set(MemorySegment target, int attribute, MemorySegment from, long byteSize);

    void handle(int attribute, MemorySegment handle) {
        number(attribute, handle.address());
    }

    /** Sets {@code attribute}, unless it has this number already. */
    void number(int attribute, long number) {
        if (written[attribute] && numbers[attribute] == number) {
            return;
        }
        value.set(ValueLayout.JAVA_LONG, 0, number);
        set(object, attribute, value, 8);
        numbers[attribute] = number;
        written[attribute] = true;
    }

    /**
     * Returns whether the diagonal ends at the bottom right: a causal mask says so itself; with others it does, TE's default, unless in
     * eight bits.
     */
    static boolean isBottomRight(AttentionProblem problem, boolean quantized) {
        MaskType mask = problem.mask();
        return mask.isBottomRight() && (mask.isCausal() || !quantized);
    }

    /** Sets where the diagonal ends. */
    void diagonal(int attribute, AttentionProblem problem, @Nullable AttentionScales scales) {
        boolean newDiagonal = isBottomRight(problem, scales != null);
        if (newDiagonal != bottomRight) {
            flag(attribute, newDiagonal);
            bottomRight = newDiagonal;
        }
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
