package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.ops.Dropout;
import dev.chagres.ops.Elementwise;
import dev.chagres.pass.Pass;
import dev.chagres.witness.PhiloxWitness;
import java.util.Arrays;
import org.apache.commons.math3.distribution.BinomialDistribution;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** What residual streams add by {@code ops.Elementwise} and {@code ops.Dropout}: sums, dropout's mask, its statistics. */
@Tag("L0")
@Tag("L1")
class ResidualConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** One sum with dropout, and what it has drawn. */
    private record Sum(Tensor output, Tensor mask, float probability) {
        private static Sum of(Tensor x, Tensor residual, Tensor rngState, float probability) {
            Tensor y = open.scope().like(x);
            Tensor mask = open.scope().tensor(DType.BYTE, Dropout.maskBytes(x.count()));
            Dropout.dropoutAdd(x, residual, y, mask, rngState, probability, open.stream());
            return new Sum(y, mask, probability);
        }

        private boolean[] kept() {
            return open.bits(mask, (int) output.count());
        }

        private Tensor backward(Tensor dy) {
            Tensor dx = open.scope().like(dy);
            Dropout.dropoutBackward(dy, mask, dx, probability, open.stream());
            return dx;
        }
    }

    private static Tensor rngState(long seed, long offset) {
        Tensor state = open.scope().tensor(DType.INT64, 2);
        state.set(open.stream(), seed, offset);
        return state;
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void addsWithoutDropout(DType dtype) {
        for (int count : new int[] {0, 1, 7, 8, 9, 1023, 1024, 1025}) {
            double[] x = open.normal(dtype, count, 1);
            double[] r = open.normal(dtype, count, 1);
            double[] sum = new double[count];
            for (int i = 0; i < count; i++) {
                sum[i] = x[i] + r[i];
            }
            Tensor output = open.scope().tensor(dtype, count);
            Elementwise.add(vector(dtype, x), vector(dtype, r), output, open.stream());
            open.assertClose("y", sum, open.read(output), 1, Tolerances.rounded(dtype));
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
            long offset = open.random().nextInt(1000);
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
            Sum sum = Sum.of(vector(DType.FLOAT32, x), vector(DType.FLOAT32, r), rngState(seed, offset), probability);
            assertArrayEquals(kept, sum.kept());
            Tolerance tolerance = Tolerances.rounded(DType.FLOAT32);
            // A sum near 0 carries the roundings of its summands, which are around 1.
            open.assertClose("y", y, open.read(sum.output()), 1, tolerance);
            open.assertClose("dx", dx, sum.backward(vector(DType.FLOAT32, dy)), tolerance);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void sixteenBitsAreRoundedOnce(DType dtype) {
        int count = 1025;
        RealMatrix x = open.normal(dtype, 5, 205, 1);
        RealMatrix r = open.normal(dtype, 5, 205, 1);
        RealMatrix dy = open.normal(dtype, 5, 205, 1);
        Sum sum = Sum.of(open.tensor(dtype, x), open.tensor(dtype, r), rngState(7, 0), 0.3f);
        boolean[] kept = sum.kept();
        RealMatrix y = r.copy();
        RealMatrix dx = new BlockRealMatrix(5, 205);
        for (int i = 0; i < count; i++) {
            if (kept[i]) {
                y.addToEntry(i / 205, i % 205, x.getEntry(i / 205, i % 205) / 0.7);
                dx.setEntry(i / 205, i % 205, dy.getEntry(i / 205, i % 205) / 0.7);
            }
        }
        open.assertClose("y", y, sum.output(), Tolerances.rounded(dtype));
        open.assertClose("dx", dx, sum.backward(open.tensor(dtype, dy)), Tolerances.rounded(dtype));
    }

    /** The number of dropped elements lies within bounds that one run in a million leaves. */
    @ParameterizedTest
    @ValueSource(floats = {0.1f, 0.5f, 0.9f})
    void dropsAsOftenAsToldAndEverywhereAlike(float probability) {
        int count = 100_000;
        Pass pass = open.pass();
        pass.seed(open.random().nextLong(), 1, 0);
        Tensor zero = open.scope().tensor(DType.BFLOAT16, count);
        zero.zero(open.stream());
        boolean[] first = Sum.of(zero, zero, pass.draw(), probability).kept();
        boolean[] second = Sum.of(zero, zero, pass.draw(), probability).kept();
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
        Tensor start = rngState(42, 0);
        Tensor later = rngState(42, 250);
        Tensor zero = open.scope().tensor(DType.FLOAT32, 1000);
        zero.zero(open.stream());
        boolean[] first = Sum.of(zero, zero, start, 0.5f).kept();
        boolean[] second = Sum.of(zero, zero, later, 0.5f).kept();
        assertTrue(Arrays.mismatch(first, second) >= 0, "another offset draws other numbers");
        assertArrayEquals(first, Sum.of(zero, zero, start, 0.5f).kept());
        assertArrayEquals(second, Sum.of(zero, zero, later, 0.5f).kept());
    }

    @Test
    void nanAndInfinityPassUnlessDropped() {
        double[] x = new double[64];
        Arrays.fill(x, Double.NaN);
        Sum sum = Sum.of(vector(DType.BFLOAT16, x), vector(DType.BFLOAT16, new double[64]), rngState(3, 0), 0.5f);
        boolean[] kept = sum.kept();
        float[] y = open.read(sum.output());
        float[] dx = open.read(sum.backward(vector(DType.BFLOAT16, x)));
        for (int i = 0; i < 64; i++) {
            assertEquals(kept[i] ? Float.NaN : 0, y[i], "a dropped NaN is gone");
            assertEquals(kept[i] ? Float.NaN : 0, dx[i], "a dropped NaN is gone");
        }
    }
}
