package dev.chagres.internal;

import java.util.concurrent.locks.ReentrantLock;

/**
 * A lock that a block holds: {@code try (var _ = lock.hold()) { … }}.
 *
 * <p>Threading: thread-safe.
 */
public class ScopedLock extends ReentrantLock implements AutoCloseable {
    private static final long serialVersionUID = 1;

    /** Takes the lock, which {@link #close} releases. */
    public final ScopedLock hold() {
        lock();
        return this;
    }

    /** Releases the lock. */
    @Override
    public void close() {
        unlock();
    }
}
