package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Dropout;
import dev.chagres.Philox;
import dev.chagres.Tensor;
import dev.chagres.layer.Residual;
import dev.chagres.witness.PhiloxWitness;
import java.util.List;
import org.apache.commons.math3.distribution.BinomialDistribution;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code Residual}: sums, dropout's mask, its statistics, its backward pass. */
@Tag("L0")
@Tag("L1")
class ResidualConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void addsWithoutDropout(DType dtype) {
        Residual residual = new Residual(Dropout.none());
        for (int count : new int[] {0, 1, 7, 8, 9, 1023, 1024, 1025}) {
            double[] x = open.normal(dtype, count, 1);
            double[] r = open.normal(dtype, count, 1);
            double[] sum = new double[count];
            for (int i = 0; i < count; i++) {
                sum[i] = x[i] + r[i];
            }
            Tensor input = vector(dtype, x);
            Residual.Saved saved = residual.forward(input, vector(dtype, r), open.scope());
            open.assertClose("y", sum, open.read(saved.output()), 1, Tolerances.rounded(dtype));
            assertNull(saved.mask());
            assertSame(input, residual.backward(input, saved, open.scope()), "the gradient is dy itself");
        }
    }

    private static Tensor vector(DType dtype, double... values) {
        Tensor tensor = open.scope().tensor(dtype, values.length);
        open.set(tensor, values);
        return tensor;
    }

    /** The mask is that of Philox4x32-10 computed here, bit by bit: equal on every provider. */
    @ParameterizedTest
    @ValueSource(floats = {0.1f, 0.5f, 0.9f, 1e-6f, 0.999999f})
    void dropsWhatTheRandomNumbersSay(float probability) {
        for (int count : new int[] {1, 3, 4, 5, 8, 9, 1000, 4097}) {
            long seed = open.random().nextLong();
            Philox generator = new Philox(seed);
            generator.seek(open.random().nextInt(1000));
            long offset = generator.offset();
            Residual residual = new Residual(Dropout.of(probability, generator));
            double[] x = open.normal(DType.FLOAT32, count, 1);
            double[] r = open.normal(DType.FLOAT32, count, 1);
            double[] dy = open.normal(DType.FLOAT32, count, 1);
            double[] y = new double[count];
            double[] dx = new double[count];
            boolean[] kept = new boolean[count];
            double factor = 1 / (1 - (double) probability);
            for (int i = 0; i < count; i++) {
                kept[i] = PhiloxWitness.word(seed, offset + i / 4, i % 4) * 0x1p-32 >= probability;
                y[i] = r[i] + (kept[i] ? x[i] * factor : 0);
                dx[i] = kept[i] ? dy[i] * factor : 0;
            }
            Residual.Saved saved = residual.forward(vector(DType.FLOAT32, x), vector(DType.FLOAT32, r), open.scope());
            assertArrayEquals(kept, mask(saved, count));
            Tolerance tolerance = Tolerances.rounded(DType.FLOAT32);
            // A sum near 0 carries the roundings of its summands, which are around 1.
            open.assertClose("y", y, open.read(saved.output()), 1, tolerance);
            open.assertClose("dx", dx, residual.backward(vector(DType.FLOAT32, dy), saved, open.scope()), tolerance);
            assertEquals(offset + (count + 3) / 4, generator.offset(), "draws that were used are used up");
        }
    }

    private static boolean[] mask(Residual.Saved saved, int count) {
        assertNotNull(saved.mask());
        return open.bits(saved.mask(), count);
    }

    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void sixteenBitsAreRoundedOnce(DType dtype) {
        int count = 1025;
        Residual residual = new Residual(Dropout.of(0.3f, new Philox(7)));
        RealMatrix x = open.normal(dtype, 5, 205, 1);
        RealMatrix r = open.normal(dtype, 5, 205, 1);
        RealMatrix dy = open.normal(dtype, 5, 205, 1);
        Residual.Saved saved = residual.forward(open.tensor(dtype, x), open.tensor(dtype, r), open.scope());
        boolean[] kept = mask(saved, count);
        RealMatrix y = r.copy();
        RealMatrix dx = MatrixUtils.createRealMatrix(5, 205);
        for (int i = 0; i < count; i++) {
            if (kept[i]) {
                y.addToEntry(i / 205, i % 205, x.getEntry(i / 205, i % 205) / 0.7);
                dx.setEntry(i / 205, i % 205, dy.getEntry(i / 205, i % 205) / 0.7);
            }
        }
        open.assertClose("y", y, saved.output(), Tolerances.rounded(dtype));
        open.assertClose(
                "dx", dx, residual.backward(open.tensor(dtype, dy), saved, open.scope()), Tolerances.rounded(dtype));
    }

    /** The number of dropped elements lies within bounds that one run in a million leaves. */
    @ParameterizedTest
    @ValueSource(floats = {0.1f, 0.5f, 0.9f})
    void dropsAsOftenAsToldAndEverywhereAlike(float probability) {
        int count = 100_000;
        Residual residual =
                new Residual(Dropout.of(probability, new Philox(open.random().nextLong())));
        Tensor zero = open.scope().tensor(DType.BFLOAT16, count);
        zero.zero(open.stream());
        boolean[] first = mask(residual.forward(zero, zero, open.scope()), count);
        boolean[] second = mask(residual.forward(zero, zero, open.scope()), count);
        for (int lane = 0; lane < 4; lane++) {
            int dropped = 0;
            int both = 0;
            for (int i = lane; i < count; i += 4) {
                dropped += first[i] ? 0 : 1;
                both += first[i] || second[i] ? 0 : 1;
            }
            assertLikely(dropped, count / 4, probability);
            assertLikely(both, count / 4, (double) probability * probability);
        }
    }

    private static void assertLikely(int seen, int of, double probability) {
        BinomialDistribution distribution = new BinomialDistribution(of, probability);
        int least = distribution.inverseCumulativeProbability(5e-8);
        int most = distribution.inverseCumulativeProbability(1 - 5e-8);
        assertTrue(seen >= least && seen <= most, "expected " + least + " to " + most + " of " + of + ", got " + seen);
    }

    @Test
    void theSameSeedAndOffsetGiveTheSameMask() {
        Philox generator = new Philox(42);
        Residual residual = new Residual(Dropout.of(0.5f, generator));
        Tensor zero = open.scope().tensor(DType.FLOAT32, 1000);
        zero.zero(open.stream());
        boolean[] first = mask(residual.forward(zero, zero, open.scope()), 1000);
        boolean[] second = mask(residual.forward(zero, zero, open.scope()), 1000);
        assertEquals(false, List.of(first).equals(List.of(second)));
        assertTrue(java.util.Arrays.mismatch(first, second) >= 0, "another offset draws other numbers");
        generator.seek(0);
        assertArrayEquals(first, mask(residual.forward(zero, zero, open.scope()), 1000));
        assertArrayEquals(second, mask(residual.forward(zero, zero, open.scope()), 1000));
    }

    @Test
    void nanAndInfinityPassUnlessDropped() {
        Residual residual = new Residual(Dropout.of(0.5f, new Philox(3)));
        double[] x = new double[64];
        java.util.Arrays.fill(x, Double.NaN);
        Residual.Saved saved =
                residual.forward(vector(DType.BFLOAT16, x), vector(DType.BFLOAT16, new double[64]), open.scope());
        boolean[] kept = mask(saved, 64);
        float[] y = open.read(saved.output());
        float[] dx = open.read(residual.backward(vector(DType.BFLOAT16, x), saved, open.scope()));
        for (int i = 0; i < 64; i++) {
            assertEquals(kept[i] ? Float.NaN : 0, y[i], "a dropped NaN is gone");
            assertEquals(kept[i] ? Float.NaN : 0, dx[i], "a dropped NaN is gone");
        }
    }
}
