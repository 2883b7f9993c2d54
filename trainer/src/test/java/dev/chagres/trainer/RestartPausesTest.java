package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.List;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Pauses before restarts, by a clock that the test sets. */
@Tag("L0")
class RestartPausesTest {
    private static final Duration SHORT = Launch.RestartPauses.HEALTHY_RUN.minusNanos(1);

    private long now = Long.MAX_VALUE - 5; // It overflows, as System.nanoTime may.

    private long pauseAfter(Launch.RestartPauses pauses, Duration run) {
        now += Duration.ofHours(1).toNanos(); // The pause itself is no run.
        pauses.begin();
        now += run.toNanos();
        return pauses.nextSeconds();
    }

    private List<Long> pausesAfter(Launch.RestartPauses pauses, Duration run, int count) {
        return LongStream.range(0, count).mapToObj(i -> pauseAfter(pauses, run)).toList();
    }

    @Test
    void theyGrowToHalfAMinute() {
        Launch.RestartPauses pauses = new Launch.RestartPauses(() -> now);
        assertEquals(List.of(1L, 2L, 4L, 8L, 16L, 30L, 30L), pausesAfter(pauses, Duration.ZERO, 7));
        assertEquals(List.of(30L, 30L), pausesAfter(pauses, SHORT, 2));
    }

    @Test
    void theyBeginAnewAfterTenMinutes() {
        assertEquals(Duration.ofMinutes(10), Launch.RestartPauses.HEALTHY_RUN);
        Launch.RestartPauses pauses = new Launch.RestartPauses(() -> now);
        assertEquals(List.of(1L, 2L, 4L), pausesAfter(pauses, SHORT, 3));
        assertEquals(1, pauseAfter(pauses, Launch.RestartPauses.HEALTHY_RUN));
        assertEquals(List.of(2L, 4L), pausesAfter(pauses, Duration.ofSeconds(3), 2));
        assertEquals(List.of(1L, 1L), pausesAfter(pauses, Duration.ofDays(2), 2));
    }
}
