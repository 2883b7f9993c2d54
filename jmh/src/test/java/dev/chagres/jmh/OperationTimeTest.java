package dev.chagres.jmh;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Warmup;

/** All benchmarks of single operations, with the settings that they have, leave 125 seconds of five minutes of a GPU for what is not timed. */
@Tag("L0")
class OperationTimeTest {
    private static final double MOST_SECONDS = 175;

    @Test
    void fitsFiveMinutes() throws IOException, ClassNotFoundException {
        Warmup warmup = OperationBenchmark.class.getAnnotation(Warmup.class);
        Measurement measurement = OperationBenchmark.class.getAnnotation(Measurement.class);
        double each = seconds(warmup.iterations(), warmup.time(), warmup.timeUnit())
                + seconds(measurement.iterations(), measurement.time(), measurement.timeUnit());
        long runs = 0;
        for (Class<?> type : OperationBenchmarks.all()) {
            assertEquals(warmup, type.getAnnotation(Warmup.class), type + " has settings of its own");
            assertEquals(measurement, type.getAnnotation(Measurement.class), type + " has settings of its own");
            runs += OperationBenchmarks.methods(type).size()
                    * (long) OperationBenchmarks.parameters(type).size();
        }
        assertTrue(runs > 100, "found " + runs);
        assertEquals(0, OperationBenchmark.class.getAnnotation(Fork.class).value(), "processes a run");
        double all = runs * each;
        System.out.printf("%d runs of operations, %.1f s each: %.0f s%n", runs, each, all);
        assertTrue(all <= MOST_SECONDS, () -> "expected at most " + MOST_SECONDS + " s, got " + all);
    }

    private static double seconds(int iterations, int time, TimeUnit unit) {
        return iterations * unit.toMillis(time) / 1e3;
    }
}
