package dev.chagres.nccl;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;

/**
 * A lock, and waiting with it until what it guards has changed. A wait has an end of its own, so an interrupt does not end it: the thread
 * finds that afterwards.
 *
 * <p>Threading: thread-safe.
 */
final class Monitor {
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();

    void lock() {
        lock.lock();
    }

    /** Gives the lock back, and lets those who wait look again. */
    void unlock() {
        changed.signalAll();
        lock.unlock();
    }

    /** Lets those who wait look again once the lock is given back; it is held. */
    void changed() {
        changed.signalAll();
    }

    /** Waits, with the lock held, until the condition holds or the time is up; returns whether it holds. */
    boolean waitUntil(BooleanSupplier condition, long timeoutMillis) {
        long left = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        boolean interrupted = false;
        boolean holds = condition.getAsBoolean();
        while (!holds && left > 0) {
            try {
                left = changed.awaitNanos(left);
            } catch (InterruptedException _) {
                interrupted = true;
            }
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
