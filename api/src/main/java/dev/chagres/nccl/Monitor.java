package dev.chagres.nccl;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * A lock, and waits with it until the guarded state has changed. Waits have their own timeouts, so an interrupt does not end them: the
 * thread sees it afterwards.
 *
 * <p>Threading: thread-safe.
 */
final class Monitor {
    private static final long LOOK_NANOS = TimeUnit.MILLISECONDS.toNanos(RunningClock.PERIOD_MILLIS);

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();

    void lock() {
        lock.lock();
    }

    /** Releases the lock, and wakes the waiting threads. */
    void unlock() {
        changed.signalAll();
        lock.unlock();
    }

    /** Wakes the waiting threads, which check again once this thread, which holds the lock, releases it. */
    void changed() {
        changed.signalAll();
    }

    /**
     * Waits, with the lock held, until the condition holds or the time is up, by the {@link RunningClock}; returns whether the condition
     * holds.
     */
    boolean waitUntil(BooleanSupplier condition, long timeoutMillis) {
        if (condition.getAsBoolean()) {
            return true;
        }
        long timeout = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        RunningClock clock = new RunningClock();
        boolean interrupted = false;
        boolean holds = false;
        long left = timeout;
        while (!holds && left > 0) {
            try {
                var _ = changed.awaitNanos(Math.min(left, LOOK_NANOS));
            } catch (InterruptedException _) {
                interrupted = true;
            }
            left = timeout - clock.look();
            holds = condition.getAsBoolean();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return holds;
    }

    /** Runs {@code body} without the lock, however often the thread has taken it, and takes it as often again. */
    void unlocked(Runnable body) {
        int held = lock.getHoldCount();
        for (int i = 0; i < held; i++) {
            lock.unlock();
        }
        try {
            body.run();
        } finally {
            for (int i = 0; i < held; i++) {
                lock.lock();
            }
        }
    }
}
