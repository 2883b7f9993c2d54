package dev.chagres.trainer;

import java.time.Duration;
import java.util.function.LongSupplier;

/**
 * How long to wait before ranks start again: 1 s, then twice as long each time, for what made them fail may take a while to be over. After a
 * run that lasted {@link #HEALTHY_RUN} it was over, so the next pause is 1 s again.
 *
 * <p>Threading: one thread at a time.
 */
final class RestartPauses {
    /** How long a run lasts at least for the pauses to begin anew. */
    static final Duration HEALTHY_RUN = Duration.ofMinutes(10);

    private static final long LONGEST_SECONDS = 30;

    private final LongSupplier nanoTime;
    private long begun;
    private long next = 1;

    /** {@code nanoTime}: a clock such as {@link System#nanoTime}. */
    RestartPauses(LongSupplier nanoTime) {
        this.nanoTime = nanoTime;
        begun = nanoTime.getAsLong();
    }

    /** A run begins. */
    void begin() {
        begun = nanoTime.getAsLong();
    }

    /** The run that has begun last has failed: returns how long to wait before the next one. */
    long nextSeconds() {
        if (nanoTime.getAsLong() - begun >= HEALTHY_RUN.toNanos()) {
            next = 1;
        }
        long seconds = next;
        next = Math.min(LONGEST_SECONDS, 2 * seconds);
        return seconds;
    }
}
