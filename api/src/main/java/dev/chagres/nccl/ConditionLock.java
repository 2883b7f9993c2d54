package dev.chagres.nccl;

import dev.chagres.internal.ScopedLock;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.function.BooleanSupplier;

/**
 * A lock, and waits with it until the guarded state has changed. An interrupt ends a wait for other ranks, and no other: those are short, and the
 * thread sees it afterwards.
 *
 * <p>Threading: thread-safe.
 */
final class ConditionLock extends ScopedLock {
    private static final long serialVersionUID = 1;
    private static final long LOOK_NANOS = TimeUnit.MILLISECONDS.toNanos(RunningClock.PERIOD_MILLIS);

    private final transient Condition changed = newCondition();

    /** Releases the lock, and wakes the waiting threads. */
    @Override
    public void unlock() {
        changed.signalAll();
        super.unlock();
    }

    /** Wakes the waiting threads, which check again once this thread, which holds the lock, releases it. */
    void changed() {
        changed.signalAll();
    }

    /** How a wait has ended. */
    enum End {
        HOLDS,
        TIME_IS_UP,
        INTERRUPTED
    }

    /**
     * Waits, with the lock held, until the condition holds or the time is up, by the {@link RunningClock}; returns whether the condition
     * holds. An interrupt is seen after the wait.
     */
    boolean waitUntil(BooleanSupplier condition, long timeoutMillis) {
        return await(condition, timeoutMillis, End.TIME_IS_UP) == End.HOLDS;
    }

    /** The same, which an interrupt ends, too; the thread stays interrupted. */
    End waitUntilInterrupted(BooleanSupplier condition, long timeoutMillis) {
        return await(condition, timeoutMillis, End.INTERRUPTED);
    }

    private End await(BooleanSupplier condition, long timeoutMillis, End earliest) {
        long timeout = TimeUnit.MILLISECONDS.toNanos(timeoutMillis);
        RunningClock clock = new RunningClock();
        boolean interrupted = false;
        boolean holds = condition.getAsBoolean();
        long left = timeout;
        while (!holds && left > 0 && !(interrupted && earliest == End.INTERRUPTED)) {
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
        return holds ? End.HOLDS : left > 0 ? End.INTERRUPTED : End.TIME_IS_UP;
    }

    /** Runs {@code body} without the lock, however often the thread has taken it, and takes it as often again. */
    void unlocked(Runnable body) {
        int held = getHoldCount();
        for (int i = 0; i < held; i++) {
            unlock();
        }
        try {
            body.run();
        } finally {
            for (int i = 0; i < held; i++) {
                lock();
            }
        }
    }
}
