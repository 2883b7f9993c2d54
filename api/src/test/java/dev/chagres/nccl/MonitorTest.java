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
class MonitorTest {
    private static final long HANGS_MILLIS = 25_000;

    private final Monitor monitor = new Monitor();
    private final CountDownLatch held = new CountDownLatch(1);
    private boolean come;

    /** Begins a thread that says that it has come, once it gets the lock. */
    private Thread comes() {
        return Thread.ofPlatform().daemon().start(() -> {
            monitor.lock();
            try {
                come = true;
            } finally {
                monitor.unlock();
            }
        });
    }

    @Test
    void aWaitEndsWhenTheTimeIsUp() {
        monitor.lock();
        try {
            long begin = System.nanoTime();
            assertFalse(monitor.waitUntil(() -> false, 20));
            assertTrue(System.nanoTime() - begin >= 20_000_000, "ended early");
        } finally {
            monitor.unlock();
        }
    }

    @Test
    void timeInWhichTheProcessStandsStillDoesNotEndAWait() {
        AtomicInteger looks = new AtomicInteger();
        monitor.lock();
        try {
            assertTrue(monitor.waitUntil(
                    () -> {
                        int look = looks.incrementAndGet();
                        if (look == 2) {
                            LockSupport.parkNanos(TimeUnit.SECONDS.toNanos(1));
                        }
                        return look > 4;
                    },
                    500));
        } finally {
            monitor.unlock();
        }
    }

    @Test
    void aWaitEndsWhenAnotherThreadHasMadeTheConditionHold() {
        monitor.lock();
        try {
            comes();
            assertTrue(monitor.waitUntil(() -> come, HANGS_MILLIS));
        } finally {
            monitor.unlock();
        }
    }

    @Test
    void anInterruptIsFoundAfterTheWait() {
        monitor.lock();
        try {
            Thread.currentThread().interrupt();
            comes();
            assertTrue(monitor.waitUntil(() -> come, HANGS_MILLIS));
            assertTrue(Thread.interrupted(), "the interrupt was lost");
        } finally {
            monitor.unlock();
        }
    }

    @Test
    void anInterruptEndsAWaitForOtherRanks() {
        monitor.lock();
        try {
            Thread.currentThread().interrupt();
            assertEquals(Monitor.End.INTERRUPTED, monitor.waitUntilInterrupted(() -> false, HANGS_MILLIS));
            assertEquals(Monitor.End.HOLDS, monitor.waitUntilInterrupted(() -> true, HANGS_MILLIS));
            assertTrue(Thread.interrupted(), "the interrupt was lost");
            assertEquals(Monitor.End.TIME_IS_UP, monitor.waitUntilInterrupted(() -> false, 1));
        } finally {
            monitor.unlock();
        }
    }

    @Test
    void withoutTheLockOthersGetItThoughItWasTakenTwice() throws InterruptedException {
        AtomicBoolean got = new AtomicBoolean();
        monitor.lock();
        monitor.lock();
        try {
            monitor.unlocked(() -> got.set(joins(comes())));
            assertTrue(got.get(), "the lock was not given back");
            Thread later = Thread.ofPlatform().daemon().start(() -> {
                monitor.lock();
                held.countDown();
                monitor.unlock();
            });
            monitor.unlock();
            assertFalse(later.join(Duration.ofMillis(50)), "the lock was not taken as often again");
        } finally {
            monitor.unlock();
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
