package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class RateScheduleTest {
    @Test
    void risesThenFallsToATenth() {
        for (var decay : RateSchedule.Decay.values()) {
            var schedule = new RateSchedule(2, 4, 15, decay);
            assertEquals(0.5, schedule.at(0), 1e-12);
            assertEquals(2, schedule.at(3), 1e-12);
            assertEquals(2, schedule.at(4), 1e-12);
            assertEquals(decay == RateSchedule.Decay.NONE ? 2 : 1.1, schedule.at(9), 1e-12);
            assertEquals(decay == RateSchedule.Decay.NONE ? 2 : 0.2, schedule.at(14), 1e-12);
        }
    }

    @Test
    void oneStepHasThePeak() {
        assertEquals(3, new RateSchedule(3, 0, 1, RateSchedule.Decay.LINEAR).at(0));
        assertEquals(3, new RateSchedule(3, 1, 1, RateSchedule.Decay.COSINE).at(0));
    }
}
