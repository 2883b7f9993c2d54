package dev.chagres.internal;

import dev.chagres.internal.memory.Closing;
import java.util.ArrayList;
import java.util.List;

/**
 * What a constructor has opened so far, which is closed again if the constructor fails: whoever called it gets nothing to close.
 *
 * <p>Threading: the device's thread.
 */
public final class Opened {
    private final List<AutoCloseable> all = new ArrayList<>();

    /** Begins with nothing. */
    public Opened() {}

    /** Adds {@code one} and returns it. */
    public <T extends AutoCloseable> T add(T one) {
        all.add(one);
        return one;
    }

    /** Closes all after {@code failure}, the last first. What fails in that is added to {@code failure}. */
    public void closeAfter(Throwable failure) {
        try {
            Closing.newestFirst(all);
        } catch (RuntimeException later) {
            failure.addSuppressed(later);
        }
    }
}
