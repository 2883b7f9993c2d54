package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code LossScale} against its formulas. */
@Tag("L0")
@Tag("L1")
class LossScaleConformance {
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor number(double value) {
        return open.tensor(DType.FLOAT32, new double[] {value}, 1);
    }

    @ParameterizedTest
    @CsvSource({"262144, 65536, 1", "100, 65536, 1", "0, 8, 1", "3e30, 3, 0.1", "2, 1024, Infinity"})
    void clip(float norm, float scale, float maxNorm) {
        Tensor present = number(norm);
        Tensor factor = open.unwritten(DType.FLOAT32, 1);
        Tensor skip = open.ints(0);
        LossScale.clip(present, number(scale), maxNorm, factor, skip, open.stream());
        double unscaled = (double) norm / scale;
        double expected = Math.min(1, maxNorm / (unscaled + 1e-6)) / scale;
        open.assertClose("norm", new double[] {unscaled}, present, Tolerances.rounded(DType.FLOAT32));
        open.assertClose("factor", new double[] {expected}, factor, Tolerances.rounded(DType.FLOAT32));
        assertEquals(0, skip.toInts(open.stream())[0]);
    }

    @ParameterizedTest
    @CsvSource({"NaN", "Infinity"})
    void aNormThatIsNotFiniteSkips(float norm) {
        Tensor present = number(norm);
        Tensor factor = open.unwritten(DType.FLOAT32, 1);
        Tensor skip = open.ints(0);
        LossScale.clip(present, number(1024), 1, factor, skip, open.stream());
        assertEquals(norm, open.read(present)[0]);
        assertEquals(0, open.read(factor)[0]);
        assertEquals(1, skip.toInts(open.stream())[0]);
    }

    @ParameterizedTest
    @CsvSource({
        "0, 64, 0, 2, 7, 64, 1, 2, 8",
        "0, 64, 9, 2, 7, 256, 0, 2, 8",
        "1, 64, 9, 2, 7, 16, 0, 3, 7",
        "0, 3e38, 9, 0, 0, 3e38, 0, 0, 1",
        "1, 1.5e-38, 0, 0, 0, 1.5e-38, 0, 1, 0"
    })
    void update(
            int skip,
            float scale,
            int taken,
            int skipped,
            int step,
            float newScale,
            int newTaken,
            int newSkipped,
            int newStep) {
        Tensor present = number(scale);
        Tensor counts = open.ints(taken, skipped);
        Tensor steps = open.ints(step);
        LossScale.update(open.ints(skip), present, counts, steps, 4, 0.25f, 10, open.stream());
        assertEquals(newScale, open.read(present)[0]);
        assertArrayEquals(new int[] {newTaken, newSkipped}, counts.toInts(open.stream()));
        assertEquals(newStep, steps.toInts(open.stream())[0]);
    }

    @ParameterizedTest
    @CsvSource({"0, 5", "1, 5", "0, 1000", "1, 1000", "1, 0"})
    void restore(int skip, int count) {
        double[] before = new double[count];
        double[] changed = new double[count];
        for (int i = 0; i < count; i++) {
            before[i] = i + 0.5;
            changed[i] = -i;
        }
        Tensor saved = open.tensor(DType.FLOAT32, before, count);
        Tensor values = open.tensor(DType.FLOAT32, changed, count);
        LossScale.restore(open.ints(skip), saved, values, open.stream());
        float[] read = open.read(values);
        for (int i = 0; i < count; i++) {
            assertEquals((float) (skip == 1 ? before[i] : changed[i]), read[i]);
        }
    }

    @Test
    void restoreRefusals() {
        Tensor one = number(1);
        Tensor two = open.tensor(DType.FLOAT32, new double[] {1, 2}, 2);
        Tensor skip = open.ints(0);
        restoreRefused("skip: expected INT32[1], got FLOAT32[1]", one, one, two);
        restoreRefused("saved: expected elements of FLOAT32, got INT32[1]", skip, skip, one);
        restoreRefused("values: expected FLOAT32[1], got FLOAT32[2]", skip, one, two);
        restoreRefused("values: expected memory of its own, got some of saved" + SHARED, skip, two, two);
    }

    private static void restoreRefused(String text, Tensor skip, Tensor saved, Tensor values) {
        assertThrown(IllegalArgumentException.class, text, () -> LossScale.restore(skip, saved, values, open.stream()));
    }

    @Test
    void refusals() {
        Tensor norm = number(1);
        Tensor scale = number(2);
        Tensor factor = number(3);
        Tensor skip = open.ints(0);
        clipRefused("norm: expected FLOAT32[1], got INT32[1]", skip, scale, 1, factor, skip);
        clipRefused("skip: expected INT32[1], got FLOAT32[1]", norm, scale, 1, factor, factor);
        clipRefused("maxNorm: expected a number above 0, got 0.0", norm, scale, 0, factor, skip);
        clipRefused("maxNorm: expected a number above 0, got NaN", norm, scale, Float.NaN, factor, skip);
        clipRefused("norm: expected memory of its own, got some of lossScale" + SHARED, norm, norm, 1, factor, skip);
        clipRefused("factor: expected memory of its own, got some of lossScale" + SHARED, norm, scale, 1, scale, skip);
        Tensor counts = open.ints(0, 0);
        Tensor step = open.ints(0);
        updateRefused("counts: expected INT32[2], got INT32[1]", skip, step, 2, 0.5f, 1);
        updateRefused(
                "step: expected memory of its own, got some of counts" + SHARED, counts, view(counts), 2, 0.5f, 1);
        updateRefused("growthFactor: expected a finite number above 1, got 1.0", counts, step, 1, 0.5f, 1);
        updateRefused(
                "growthFactor: expected a finite number above 1, got Infinity",
                counts,
                step,
                Float.POSITIVE_INFINITY,
                0.5f,
                1);
        updateRefused("backoffFactor: expected a number above 0 and below 1, got 1.0", counts, step, 2, 1, 1);
        updateRefused("backoffFactor: expected a number above 0 and below 1, got NaN", counts, step, 2, Float.NaN, 1);
        updateRefused("growthInterval: expected at least 1, got 0", counts, step, 2, 0.5f, 0);
    }

    private static Tensor view(Tensor counts) {
        return open.scope().view(counts, 1, 1);
    }

    private static void clipRefused(String text, Tensor norm, Tensor scale, float maxNorm, Tensor factor, Tensor skip) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> LossScale.clip(norm, scale, maxNorm, factor, skip, open.stream()));
    }

    private static void updateRefused(
            String text, Tensor counts, Tensor step, float growth, float backoff, int interval) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> LossScale.update(
                        open.ints(0), number(1), counts, step, growth, backoff, interval, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor norm = number(1);
        Tensor scale = number(2);
        Tensor factor = number(3);
        Tensor skip = open.ints(0);
        Tensor counts = open.ints(0, 0);
        Tensor step = open.ints(0);
        Allocation.assertNone("loss scale", () -> {
            LossScale.clip(norm, scale, 1, factor, skip, open.stream());
            LossScale.update(skip, scale, counts, step, 2, 0.5f, 1000, open.stream());
            LossScale.restore(skip, scale, factor, open.stream());
        });
    }
}
