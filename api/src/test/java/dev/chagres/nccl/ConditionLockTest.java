package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Waits under a lock: how they end. */
@Tag("L0")
@Timeout(30)
class ConditionLockTest {
    private static final long HANGS_MILLIS = 25_000;

    private final ConditionLock lock = new ConditionLock();
    private final CountDownLatch held = new CountDownLatch(1);
    private boolean come;

    /** Begins a thread that says that it has come, once it gets the lock. */
    private Thread comes() {
        return Thread.ofPlatform().daemon().start(() -> {
            try (var _ = lock.hold()) {
                come = true;
            }
        });
    }

    @Test
    void aWaitEndsWhenTheTimeIsUp() {
        try (var _ = lock.hold()) {
            long begin = System.nanoTime();
            assertFalse(lock.waitUntil(() -> false, 20));
            assertTrue(System.nanoTime() - begin >= 20_000_000, "ended early");
        }
    }

    @Test
    void timeInWhichTheProcessStandsStillDoesNotEndAWait() {
        AtomicInteger looks = new AtomicInteger();
        try (var _ = lock.hold()) {
            assertTrue(lock.waitUntil(
                    () -> {
                        int look = looks.incrementAndGet();
                        if (look == 2) {
                            LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(1));
                        }
                        return look > 4;
                    },
                    500));
        }
    }

    @Test
    void aWaitEndsWhenAnotherThreadHasMadeTheConditionHold() {
        try (var _ = lock.hold()) {
            comes();
            assertTrue(lock.waitUntil(() -> come, HANGS_MILLIS));
        }
    }

    @Test
    void anInterruptIsFoundAfterTheWait() {
        try (var _ = lock.hold()) {
            Thread.currentThread().interrupt();
            comes();
            assertTrue(lock.waitUntil(() -> come, HANGS_MILLIS));
            assertTrue(Thread.interrupted(), "the interrupt was lost");
        }
    }

    @Test
    void anInterruptEndsAWaitForOtherRanks() {
        try (var _ = lock.hold()) {
            Thread.currentThread().interrupt();
            assertEquals(ConditionLock.End.INTERRUPTED, lock.waitUntilInterrupted(() -> false, HANGS_MILLIS));
            assertEquals(ConditionLock.End.HOLDS, lock.waitUntilInterrupted(() -> true, HANGS_MILLIS));
            assertTrue(Thread.interrupted(), "the interrupt was lost");
            assertEquals(ConditionLock.End.TIME_IS_UP, lock.waitUntilInterrupted(() -> false, 1));
        }
    }

    @Test
    void withoutTheLockOthersGetItThoughItWasTakenTwice() throws InterruptedException {
        AtomicBoolean got = new AtomicBoolean();
        lock.lock();
        try (var _ = lock.hold()) {
            lock.unlocked(() -> got.set(joins(comes())));
            assertTrue(got.get(), "the lock was not given back");
            Thread later = Thread.ofPlatform().daemon().start(() -> {
                lock.lock();
                held.countDown();
                lock.unlock();
            });
            lock.unlock();
            assertFalse(later.join(Duration.ofMillis(50)), "the lock was not taken as often again");
        }
        held.await();
    }

    private static boolean joins(Thread thread) {
        try {
            return thread.join(Duration.ofMillis(HANGS_MILLIS));
        } catch (InterruptedException interrupted) {
            throw new AssertionError(interrupted);
        }
    }
}
