package dev.chagres;

import org.jspecify.annotations.Nullable;

/**
 * Checks that an argument is there, with a text that stays when the JVM has compiled the caller.
 *
 * <p>Threading: any thread.
 */
final class Given {
    private Given() {}

    /** Returns {@code value}, which must not be null. */
    static <V> V given(String argument, @Nullable V value) {
        if (value == null) {
            throw new NullPointerException(argument + ": expected a value, got null");
        }
        return value;
    }
}
