package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.optim.LearningRateSchedule.Decay;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** The schedule's formula against double precision, around every step at which its form changes. */
@Tag("L0")
class LearningRateScheduleTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    /** The formula, written anew from its parts: a rise over w steps, then a fall over n - w. */
    private static double expected(double peak, int warmUp, int total, Decay decay, double floor, int step) {
        if (step <= warmUp) {
            return peak * step / warmUp;
        }
        double height = switch (decay) {
            case CONSTANT -> 1;
            case LINEAR -> step >= total ? 0 : (double) (total - step) / (total - warmUp);
            case COSINE -> step >= total ? 0 : Math.pow(Math.cos(Math.PI / 2 * (step - warmUp) / (total - warmUp)), 2);
        };
        return decay == Decay.CONSTANT ? peak : peak * floor + peak * (1 - floor) * height;
    }

    @ParameterizedTest
    @CsvSource({
        "1e-3,   0,   1, 0",
        "1e-3,   0, 100, 0.1",
        "4e-4,   1,   1, 0.1",
        "4e-4,   1,   2, 0.5",
        "4e-4,  10, 100, 0.1",
        "4e-4, 100, 100, 0.1",
        "3.5,    7,  13, 1",
        "0,      3,   9, 0.2",
        "1e-7, 2000, 2147483647, 0",
        "3.4028235e38, 2, 5, 0",
    })
    void followsItsFormulaAtEveryBoundary(float peak, int warmUp, int total, float floor) {
        for (Decay decay : Decay.values()) {
            LearningRateSchedule schedule = new LearningRateSchedule(peak, warmUp, total, decay, floor);
            int middle = (int) (((long) warmUp + total) / 2);
            int[] steps = {
                1, 2, warmUp / 2, warmUp - 1, warmUp, warmUp + 1, middle, total - 1, total, total + 1, Integer.MAX_VALUE
            };
            for (int step : steps) {
                if (step < 1) {
                    continue;
                }
                double expected = expected(peak, warmUp, total, decay, floor, step);
                assertEquals(
                        expected, schedule.at(step), 1e-7 * expected + 1e-15 * peak, schedule + " at step " + step);
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void risesToThePeakAndNeverAboveIt(Decay decay) {
        LearningRateSchedule schedule = new LearningRateSchedule(2e-3f, 20, 50, decay, 0.1f);
        for (int step = 2; step <= 60; step++) {
            float before = schedule.at(step - 1);
            float now = schedule.at(step);
            assertEquals(step <= 20, now > before, decay + " rises until step 20, looked at step " + step);
        }
        assertEquals(2e-3f, schedule.at(20));
        assertEquals(decay == Decay.CONSTANT ? 2e-3f : 2e-4f, schedule.at(50), 1e-10f);
        assertEquals(schedule.at(50), schedule.at(1_000_000));
    }

    @Test
    void refusesStepsBeforeTheFirst() {
        LearningRateSchedule schedule = new LearningRateSchedule(1e-3f, 10, 100, Decay.LINEAR, 0);
        for (int step : new int[] {0, -1, Integer.MIN_VALUE}) {
            assertThrown(ARGUMENT, "step: expected at least 1, got " + step, () -> schedule.at(step));
        }
        assertEquals(1e-4f, schedule.at(1), 1e-11f);
    }

    @Test
    void refusesNumbersOutOfRange() {
        for (float peak : new float[] {-1e-3f, Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "peak: expected a number of at least 0, got " + peak,
                    () -> new LearningRateSchedule(peak, 0, 1, Decay.LINEAR, 0));
        }
        for (int[] steps : new int[][] {{-1, 5}, {6, 5}, {0, -1}, {Integer.MIN_VALUE, Integer.MAX_VALUE}}) {
            assertThrown(
                    ARGUMENT,
                    "warmUpSteps, totalSteps: expected 0 <= warmUpSteps <= totalSteps, got " + steps[0] + " and "
                            + steps[1],
                    () -> new LearningRateSchedule(1, steps[0], steps[1], Decay.LINEAR, 0));
        }
        for (float floor : new float[] {-0.1f, 1.1f, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    ARGUMENT,
                    "floor: expected a number within [0, 1], got " + floor,
                    () -> new LearningRateSchedule(1, 0, 1, Decay.LINEAR, floor));
        }
        assertThrown(
                NullPointerException.class,
                "decay: expected a value, got null",
                () -> new LearningRateSchedule(1, 0, 1, null, 0));
    }
}
