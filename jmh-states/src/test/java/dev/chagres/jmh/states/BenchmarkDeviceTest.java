package dev.chagres.jmh.states;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.Elementwise;
import java.util.Collection;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.openjdk.jmh.results.Result;

/** The state and the profiler as JMH calls them. */
@Tag("L0")
class BenchmarkDeviceTest {
    private final BenchmarkDevice state = new BenchmarkDevice();

    @BeforeEach
    void open() {
        state.open();
    }

    @AfterEach
    void close() {
        state.close();
    }

    @Test
    void makesTensors() {
        assertArrayEquals(new float[6], state.zeros(DType.FLOAT32, 2, 3).toFloats(state.stream()));
        assertArrayEquals(
                new float[] {2, 2, 2}, state.filled(DType.FLOAT32, 2, 3).toFloats(state.stream()));
        Tensor repeated = state.empty(DType.FLOAT32, 5);
        state.fill(repeated, 1, 2);
        assertArrayEquals(new float[] {1, 2, 1, 2, 1}, repeated.toFloats(state.stream()));
        float[] normal = state.normal(DType.FLOAT32, 100, 100).toFloats(state.stream());
        double sum = 0;
        double squares = 0;
        for (float value : normal) {
            sum += value;
            squares += value * (double) value;
        }
        assertEquals(0, sum / normal.length, 0.05, "mean of 10,000 numbers");
        assertEquals(1, squares / normal.length, 0.05, "their variance");
        for (int number : state.drawn(100, 3)) {
            assertTrue(number >= 0 && number < 3, () -> "expected 0 to 2, got " + number);
        }
    }

    @Test
    void theProfilerAddsUpWhatTheDeviceWasGiven() {
        DeviceProfiler profiler = new DeviceProfiler();
        profiler.beforeIteration(null, null);
        assertTrue(profiler.afterIteration(null, null, null).isEmpty(), "nothing was timed");
        Tensor x = state.filled(DType.FLOAT32, 1, 1000);
        float first = state.deviceMillis(() -> Elementwise.add(x, x, x, state.stream()));
        float second = state.deviceMillis(() -> Elementwise.add(x, x, x, state.stream()));
        assertEquals(4, x.toFloats(state.stream())[999]);
        Collection<? extends Result<?>> results = profiler.afterIteration(null, null, null);
        assertEquals((first + second) / 2 * 1000, score(results, "device.time"), 1e-3 * (first + second) * 1000 + 1e-6);
        assertEquals(2, score(results, "device.calls"));
        assertTrue(score(results, "device.memory") >= 4000, results.toString());
        assertFalse(profiler.getDescription().isBlank());
        profiler.beforeIteration(null, null);
        assertEquals(2, state.countNodes(() -> {
            Elementwise.add(x, x, x, state.stream());
            Elementwise.add(x, x, x, state.stream());
        }));
        assertEquals(4, x.toFloats(state.stream())[999], "captured, not run");
        assertEquals(2, score(profiler.afterIteration(null, null, null), "device.nodes"));
    }

    private static double score(Collection<? extends Result<?>> results, String label) {
        return results.stream()
                .filter(result -> result.getLabel().equals(label))
                .findFirst()
                .orElseThrow()
                .getScore();
    }

    @Test
    void untilIdleRunsTheWork() {
        Tensor x = state.filled(DType.FLOAT32, 1, 3);
        state.untilIdle(() -> Elementwise.add(x, x, x, state.stream()));
        assertArrayEquals(new float[] {2, 2, 2}, x.toFloats(state.stream()));
    }
}
