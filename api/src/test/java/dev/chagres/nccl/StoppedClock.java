package dev.chagres.nccl;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The clock of timeouts in this process, which stands until a test lets time pass: no rank is late because the machine is busy. Time then passes
 * by as much as a {@link RunningClock} counts at most with each look of the thread that watches over ranks: ten times as fast as usual.
 *
 * <p>Threading: thread-safe; one at a time.
 */
public final class StoppedClock implements AutoCloseable {
    private static final long STEP = TimeUnit.MILLISECONDS.toNanos(RunningClock.LONGEST_STEP_MILLIS);

    private final AtomicLong now = new AtomicLong(RunningClock.now());
    private volatile boolean passes;

    public StoppedClock() {
        RunningClock.goBy(this::look);
    }

    private long look() {
        boolean counts = passes && Thread.currentThread().getName().equals(Watchdog.THREAD);
        return counts ? now.addAndGet(STEP) : now.get();
    }

    /** Lets time pass from now on. */
    public void pass() {
        passes = true;
    }

    /** Lets time stand again. */
    public void stand() {
        passes = false;
    }

    /** Returns when so much time has passed, and lets it stand again. */
    public void pass(Duration time) throws InterruptedException {
        long end = now.get() + time.toNanos();
        pass();
        while (now.get() - end < 0) {
            TimeUnit.MILLISECONDS.sleep(1);
        }
        stand();
    }

    /** Time is the system's again, and never less than it was. */
    @Override
    public void close() {
        long ahead = Math.max(0, now.get() - System.nanoTime());
        RunningClock.goBy(() -> System.nanoTime() + ahead);
    }
}
