package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class DetectionTimesTest {
    private static String of(double... seconds) {
        DetectionTimes times = new DetectionTimes("KILL");
        for (double one : seconds) {
            times.add(one);
        }
        return times.toString();
    }

    @Test
    void medianAndMaximumAreTold() {
        assertEquals("KILL: no rank was told", of());
        assertEquals("KILL: 1 ranks were told after a median of 0.250 s, at most 0.250 s", of(0.25));
        assertEquals("KILL: 3 ranks were told after a median of 2.000 s, at most 4.000 s", of(4, 1, 2));
        assertEquals("KILL: 4 ranks were told after a median of 2.500 s, at most 9.000 s", of(9, 2, 3, 1));
    }
}
