package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The clock of timeouts, which stops while the whole process stands still. */
@Tag("L0")
class RunningClockTest {
    private static long millis(long count) {
        return TimeUnit.MILLISECONDS.toNanos(count);
    }

    @Test
    void shortStepsCountInFull() {
        RunningClock clock = new RunningClock(millis(-5));
        for (int i = 0; i < 100; i++) {
            assertEquals(millis(5 + 20L * i), clock.look(millis(20L * i)));
        }
    }

    @Test
    void aStandstillCountsAsTheLongestStep() {
        RunningClock clock = new RunningClock(0);
        assertEquals(millis(20), clock.look(millis(20)));
        assertEquals(millis(20 + RunningClock.LONGEST_STEP_MILLIS), clock.look(millis(60_000)));
        assertEquals(millis(40 + RunningClock.LONGEST_STEP_MILLIS), clock.look(millis(60_020)));
    }

    @Test
    void aTimeThatOverflowsIsCounted() {
        RunningClock clock = new RunningClock(Long.MAX_VALUE - millis(10));
        assertEquals(millis(20), clock.look(Long.MAX_VALUE + millis(10)));
    }
}
