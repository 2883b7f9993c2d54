package dev.chagres.sharding;

import java.util.ArrayDeque;
import java.util.Deque;

/**
 * What a constructor has opened so far, which is closed again if the constructor fails: whoever called it gets nothing to close.
 *
 * <p>Threading: the device's thread.
 */
final class Opened {
    private final Deque<AutoCloseable> all = new ArrayDeque<>();

    /** Adds {@code one} and returns it. */
    <T extends AutoCloseable> T add(T one) {
        all.push(one);
        return one;
    }

    /** Closes all after {@code failure}, the last first. What fails in that is added to {@code failure}. */
    void closeAfter(Throwable failure) {
        while (!all.isEmpty()) {
            try {
                all.pop().close();
            } catch (Exception later) {
                failure.addSuppressed(later);
            }
        }
    }
}
