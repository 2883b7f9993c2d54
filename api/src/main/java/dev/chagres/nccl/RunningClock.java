package dev.chagres.nccl;

import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * A clock for timeouts that counts no more than {@link #LONGEST_STEP_MILLIS} between two looks at it. While this whole process stands still (a
 * long garbage collection, a debugger, a machine that is suspended), no rank in it can make progress, and none is late for that reason.
 *
 * <p>Threading: one thread at a time; look at it every {@link #PERIOD_MILLIS} or more often.
 */
final class RunningClock {
    /** How often to look: by far more often than the longest step, so that a busy machine does not slow the clock down. */
    static final long PERIOD_MILLIS = 20;

    static final long LONGEST_STEP_MILLIS = 200;

    private static volatile LongSupplier time = System::nanoTime;

    private long looked;
    private long running;

    /** Lets all clocks go by these nanoseconds; a test gives its own, with which no rank is late because the machine is busy. */
    static void goBy(LongSupplier nanoTime) {
        time = nanoTime;
    }

    /** Returns the nanoseconds that clocks go by. */
    static long now() {
        return time.getAsLong();
    }

    RunningClock() {
        this(now());
    }

    RunningClock(long nanoTime) {
        looked = nanoTime;
    }

    /** Looks at the clock; returns the nanoseconds counted since it was made. */
    long look() {
        return look(now());
    }

    /** The same at a given time. */
    long look(long nanoTime) {
        running += Math.min(nanoTime - looked, TimeUnit.MILLISECONDS.toNanos(LONGEST_STEP_MILLIS));
        looked = nanoTime;
        return running;
    }
}
