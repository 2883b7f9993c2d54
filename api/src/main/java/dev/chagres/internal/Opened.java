package dev.chagres.internal;

import dev.chagres.internal.memory.Closing;
import java.util.ArrayList;
import java.util.List;

/**
 * What a constructor has opened so far, which is closed again if the constructor fails: whoever called it gets nothing to close. A
 * constructor opens in a try statement with this as its resource, and ends that with {@link #keep}.
 *
 * <p>Threading: the device's thread.
 */
public final class Opened implements AutoCloseable {
    private final List<AutoCloseable> all = new ArrayList<>();

    /** Begins with nothing. */
    public Opened() {}

    /** Adds {@code one} and returns it. */
    public <T extends AutoCloseable> T add(T one) {
        all.add(one);
        return one;
    }

    /** Says that all stay open. */
    public void keep() {
        all.clear();
    }

    /** Closes all, the last first, unless they are kept. */
    @Override
    public void close() {
        Closing.newestFirst(all);
    }
}
