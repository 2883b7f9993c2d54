package dev.chagres.parameter;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import dev.chagres.conformance.OpenDevice;
import java.math.BigInteger;
import java.util.HashSet;
import java.util.Set;
import java.util.function.LongToDoubleFunction;
import org.apache.commons.math3.distribution.NormalDistribution;
import org.apache.commons.math3.stat.correlation.PearsonsCorrelation;
import org.apache.commons.math3.stat.descriptive.DescriptiveStatistics;
import org.apache.commons.math3.stat.inference.ChiSquareTest;
import org.apache.commons.math3.stat.inference.KolmogorovSmirnovTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Random numbers by counter: their formula, their distribution, their independence. */
@Tag("L0")
class CounterRandomTest {
    private static final int COUNT = 200_000;

    /** What a sound generator falls below once in a million runs; the key follows from the seed of the run. */
    private static final double UNLIKELY = 1e-6;

    private final long key = CounterRandom.key(OpenDevice.seed(), "layers.0.mlp.fc1.weight");

    /** The formulas, by arithmetic of any size. */
    @Test
    void followsItsFormula() {
        for (long seed : new long[] {0, 1, -1, 42, Long.MIN_VALUE, OpenDevice.seed()}) {
            for (String name :
                    new String[] {"", "a", "weight", "layers.11.attention.qkv.linear.weight", "\u00e9\ud83d"}) {
                BigInteger expected = Mixing.key(seed, name);
                long actual = CounterRandom.key(seed, name);
                assertEquals(expected, Mixing.unsigned(actual), "key of " + seed + " and " + name);
                for (long counter : new long[] {0, 1, 2, 1L << 40, -1}) {
                    BigInteger bits = Mixing.bits(expected, counter);
                    assertEquals(bits, Mixing.unsigned(CounterRandom.bits(actual, counter)));
                }
                for (long element : new long[] {0, 1, 2, 3, (1L << 33) + 1}) {
                    assertEquals(Mixing.normal(expected, element), CounterRandom.normal(actual, element), 1e-13);
                }
            }
        }
    }

    /** The generator of the paper, once more. */
    private static final class Mixing {
        private static final BigInteger GOLDEN = new BigInteger("9E3779B97F4A7C15", 16);
        private static final BigInteger TWO_64 = BigInteger.ONE.shiftLeft(64);

        private static BigInteger unsigned(long value) {
            return BigInteger.valueOf(value).mod(TWO_64);
        }

        private static BigInteger mix(BigInteger value) {
            BigInteger z = value.mod(TWO_64);
            z = z.xor(z.shiftRight(30))
                    .multiply(new BigInteger("BF58476D1CE4E5B9", 16))
                    .mod(TWO_64);
            z = z.xor(z.shiftRight(27))
                    .multiply(new BigInteger("94D049BB133111EB", 16))
                    .mod(TWO_64);
            return z.xor(z.shiftRight(31));
        }

        private static BigInteger key(long seed, String name) {
            BigInteger key = mix(unsigned(seed).add(GOLDEN));
            for (char letter : name.toCharArray()) {
                key = mix(key.xor(BigInteger.valueOf(letter).add(GOLDEN)));
            }
            return key;
        }

        private static BigInteger bits(BigInteger key, long counter) {
            return mix(mix(key.add(unsigned(counter).multiply(GOLDEN))).xor(key));
        }

        /** Box and Muller's pair from 53 bits each. */
        private static double normal(BigInteger key, long element) {
            long pair = element / 2;
            double u = bits(key, 2 * pair).shiftRight(11).doubleValue() * 0x1p-53 + 0x1p-53;
            double v = bits(key, 2 * pair + 1).shiftRight(11).doubleValue() * 0x1p-53;
            double radius = Math.sqrt(-2 * Math.log(u));
            return radius * (element % 2 == 0 ? Math.cos(2 * Math.PI * v) : Math.sin(2 * Math.PI * v));
        }
    }

    private static double[] draw(int count, LongToDoubleFunction number) {
        double[] values = new double[count];
        for (int i = 0; i < count; i++) {
            values[i] = number.applyAsDouble(i);
        }
        return values;
    }

    @Test
    void isNormal() {
        for (int parity = 0; parity < 2; parity++) {
            int offset = parity;
            double[] values = draw(COUNT, i -> CounterRandom.normal(key, 2 * i + offset));
            DescriptiveStatistics statistics = new DescriptiveStatistics(values);
            double deviation = 5 / Math.sqrt(COUNT);
            assertEquals(0, statistics.getMean(), deviation, "mean");
            assertEquals(1, statistics.getVariance(), Math.sqrt(2) * deviation, "variance");
            assertEquals(0, statistics.getSkewness(), Math.sqrt(6) * deviation, "skewness");
            assertEquals(0, statistics.getKurtosis(), Math.sqrt(24) * deviation, "excess kurtosis");
            assertTrue(statistics.getMax() > 4 && statistics.getMin() < -4, "tails");
            double probability = new KolmogorovSmirnovTest()
                    .kolmogorovSmirnovTest(new NormalDistribution(), draw(20_000, i -> values[(int) i]));
            assertTrue(probability > UNLIKELY, "Kolmogorov and Smirnov: " + probability);
        }
    }

    /** The processor's functions differ in the last place: StrictMath decides what lies near the middle of two floats. */
    @Test
    void hasTheBitsOfStrictMathAsFloat() {
        for (float factor : new float[] {1, 0.02f, 3e-39f, 1e38f, 0}) {
            CounterRandom.Normals normals = new CounterRandom.Normals(factor, key);
            for (long i = 0; i < 4 * COUNT; i++) {
                float expected = (float) (factor * CounterRandom.normal(key, i));
                int actual = Float.floatToRawIntBits(normals.value(i));
                if (Float.floatToRawIntBits(expected) != actual) {
                    fail("factor " + factor + ", element " + i + ": expected " + expected);
                }
            }
        }
    }

    /** A pair's second number first, pairs backwards, and far apart. */
    @Test
    void hasTheSameNumberInEachOrder() {
        Initializer normal = Initializer.normal(0.5f);
        CounterRandom.Normals normals = new CounterRandom.Normals(0.5f, key);
        for (long element :
                new long[] {1, 0, 1, 7, 6, 5, 4, 4, (1L << 33) + 1, 1L << 33, 2, 0, Long.MAX_VALUE, -1, -2}) {
            assertEquals(normal.value(key, element), normals.value(element), "element " + element);
        }
    }

    /** Neighbours, pairs and their squares, other names and other seeds: none tells anything of another. */
    @Test
    void isIndependent() {
        double[] values = draw(COUNT, i -> CounterRandom.normal(key, i));
        for (int lag : new int[] {1, 2, 3, 4, 7, 64, 320, 1280}) {
            int distance = lag;
            assertUncorrelated("lag " + lag, values, draw(COUNT, i -> CounterRandom.normal(key, i + distance)));
        }
        for (String name :
                new String[] {"layers.0.mlp.fc2.weight", "layers.1.mlp.fc1.weight", "layers.0.mlp.fc1.weigh"}) {
            long other = CounterRandom.key(OpenDevice.seed(), name);
            assertUncorrelated(name, values, draw(COUNT, i -> CounterRandom.normal(other, i)));
        }
        for (long seed : new long[] {OpenDevice.seed() + 1, OpenDevice.seed() ^ (1L << 63), -OpenDevice.seed()}) {
            long other = CounterRandom.key(seed, "layers.0.mlp.fc1.weight");
            assertUncorrelated("seed " + seed, values, draw(COUNT, i -> CounterRandom.normal(other, i)));
        }
    }

    private static void assertUncorrelated(String what, double[] x, double[] y) {
        double bound = 5.5 / Math.sqrt(x.length);
        PearsonsCorrelation correlation = new PearsonsCorrelation();
        assertEquals(0, correlation.correlation(x, y), bound, what);
        double[] squares = draw(x.length, i -> x[(int) i] * x[(int) i]);
        assertEquals(0, correlation.correlation(squares, draw(y.length, i -> y[(int) i] * y[(int) i])), bound, what);
    }

    /** Every byte of the bits takes every value as often; counters one apart change half of the bits. */
    @Test
    void everyBitIsRandom() {
        for (int shift = 0; shift < 64; shift += 8) {
            long[] seen = new long[256];
            for (int i = 0; i < COUNT; i++) {
                seen[(int) (CounterRandom.bits(key, i) >>> shift) & 255]++;
            }
            double[] expected = new double[256];
            java.util.Arrays.fill(expected, COUNT / 256.0);
            double probability = new ChiSquareTest().chiSquareTest(expected, seen);
            assertTrue(probability > UNLIKELY, "byte at " + shift + ": " + probability);
        }
        long changed = 0;
        for (int i = 0; i < COUNT; i++) {
            changed += Long.bitCount(CounterRandom.bits(key, i) ^ CounterRandom.bits(key, i + 1));
        }
        assertEquals(32, changed / (double) COUNT, 5 * 4 / Math.sqrt(COUNT));
    }

    @Test
    void namesAndSeedsHaveKeysOfTheirOwn() {
        Set<Long> keys = new HashSet<>();
        for (long seed = -50; seed < 50; seed++) {
            for (int layer = 0; layer < 100; layer++) {
                assertTrue(keys.add(CounterRandom.key(seed, "layers." + layer + ".weight")));
            }
        }
        assertThrown(NullPointerException.class, "name: expected a value, got null", () -> CounterRandom.key(1, null));
    }
}
