package dev.chagres.pass;

import dev.chagres.Stream;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.DeviceState;
import org.jspecify.annotations.Nullable;

/**
 * The stack of what forward calls of one pass have saved for their backward calls, the latest on top.
 *
 * <p>Threading: the device's thread.
 */
final class ContextStack {
    private static final long NOT_REPEATED = -1;

    private final DeviceState device;
    private @Nullable SavedContext top;
    private int count;
    /** The number of changes at the first run of a forward call that is repeated now. */
    private long repeated = NOT_REPEATED;

    ContextStack(Stream stream) {
        device = Inside.state(stream);
    }

    /** Makes calls from now on repeat that of {@code first}; returns the argument of {@link #endRepeat}. */
    long repeat(SavedContext first) {
        long before = repeated;
        repeated = first.changes;
        return before;
    }

    void endRepeat(long before) {
        repeated = before;
    }

    void push(SavedContext object) {
        count++;
        object.changes = repeated == NOT_REPEATED ? device.changes() : repeated;
        object.below = top;
        top = object;
    }

    void pop() {
        SavedContext object = top;
        if (object != null) {
            top = object.below;
            count--;
        }
    }

    int count() {
        return count;
    }

    @Nullable
    SavedContext top() {
        return top;
    }

    /** Returns whether {@code object} was pushed and not popped since. */
    boolean holds(SavedContext object) {
        for (SavedContext one = top; one != null; one = one.below) {
            if (one == object) {
                return true;
            }
        }
        return false;
    }

    /** Frees everything that was saved after {@code mark}. */
    void dropTo(@Nullable SavedContext mark) {
        while (top != null && top != mark) {
            SavedContext object = top;
            pop();
            if (object.pool != null) {
                object.pool.recycle(object);
            }
        }
    }
}
