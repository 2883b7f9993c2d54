package dev.chagres.layer;

import org.jspecify.annotations.Nullable;

/**
 * What forward calls of one pass have saved and backward calls have not taken, the latest on top.
 *
 * <p>Threading: the device's thread.
 */
final class SavedStack {
    private @Nullable Saved top;
    private int count;

    void push(Saved object) {
        count++;
        object.below = top;
        top = object;
    }

    void pop() {
        Saved object = top;
        if (object != null) {
            top = object.below;
            count--;
        }
    }

    int count() {
        return count;
    }

    @Nullable
    Saved top() {
        return top;
    }

    /** Returns whether {@code object} was pushed and not popped since. */
    boolean holds(Saved object) {
        for (Saved one = top; one != null; one = one.below) {
            if (one == object) {
                return true;
            }
        }
        return false;
    }

    /** Gives back everything that was saved after {@code mark}. */
    void dropTo(@Nullable Saved mark) {
        while (top != null && top != mark) {
            Saved object = top;
            pop();
            if (object.pool != null) {
                object.pool.recycle(object);
            }
        }
    }
}
