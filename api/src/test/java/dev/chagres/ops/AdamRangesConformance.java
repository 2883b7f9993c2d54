package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.witness.AdamWWitness;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code Adam} over many ranges against double precision, and against a call for each range. */
@Tag("L0")
@Tag("L1")
class AdamRangesConformance {
    private static final float BETA1 = 0.9f;
    private static final float BETA2 = 0.98f;
    private static final float EPSILON = 1e-8f;
    private static final Adam ADAM = new Adam(BETA1, BETA2, EPSILON, WeightDecay.DECOUPLED, BiasCorrection.YES);
    private static final int[] COUNTS = {1, 1025, 0, 33, 1024, 5000};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Where FP32 weights are. */
    private enum Kept {
        OWN,
        MASTERS,
        REMAINDERS
    }

    private static Tensor vector(double... values) {
        return open.tensor(DType.FLOAT32, values, values.length);
    }

    private static float rate(int range) {
        return 0.01f * (range + 1);
    }

    private static float decay(int range) {
        return range % 2 == 0 ? 0.1f : 0;
    }

    private static AdamRange range(Kept kept, int range, double[] gradient, double[] weight) {
        int count = weight.length;
        Tensor master = switch (kept) {
            case OWN -> null;
            case MASTERS -> vector(weight);
            case REMAINDERS -> open.scope().tensor(DType.BYTE, 2L * count);
        };
        if (kept == Kept.REMAINDERS && master != null) {
            master.zero(open.stream());
        }
        DType dtype = kept == Kept.OWN ? DType.FLOAT32 : DType.BFLOAT16;
        return new AdamRange(
                vector(gradient),
                open.tensor(dtype, weight, count),
                vector(new double[count]),
                vector(new double[count]),
                master,
                vector(rate(range)),
                decay(range));
    }

    private static void step(AdamRanges ranges, Tensor step, Tensor scale, Tensor skip) {
        ADAM.step(ranges, step, scale, skip, open.stream());
    }

    /** All that a step writes of {@code range}, bit by bit. */
    private static List<int[]> bits(AdamRange range) {
        List<int[]> all = new ArrayList<>();
        for (Tensor tensor : new Tensor[] {range.weight(), range.mean(), range.square()}) {
            all.add(bits(open.read(tensor)));
        }
        Tensor master = range.master();
        if (master != null) {
            all.add(master.dtype() == DType.BYTE ? remainders(master) : bits(open.read(master)));
        }
        return all;
    }

    private static int[] bits(float[] values) {
        return IntStream.range(0, values.length)
                .map(i -> Float.floatToRawIntBits(values[i]))
                .toArray();
    }

    /** The low 16 bits of masters. */
    private static int[] remainders(Tensor bytes) {
        ByteBuffer host = ByteBuffer.wrap(bytes.toBytes(open.stream())).order(ByteOrder.LITTLE_ENDIAN);
        return IntStream.range(0, host.capacity() / 2)
                .map(i -> host.getShort(2 * i) & 0xffff)
                .toArray();
    }

    /** FP32 weights, wherever they are. */
    private static float[] weights(AdamRange range) {
        Tensor master = range.master();
        float[] weights = open.read(master == null || master.dtype() == DType.BYTE ? range.weight() : master);
        if (master != null && master.dtype() == DType.BYTE) {
            int[] low = remainders(master);
            for (int i = 0; i < weights.length; i++) {
                int upper = (Float.floatToRawIntBits(weights[i]) >>> 16) - (low[i] >>> 15);
                weights[i] = Float.intBitsToFloat(upper << 16 | low[i]);
            }
        }
        return weights;
    }

    private static void assertClose(String what, double[] expected, float[] actual) {
        open.assertClose(what, expected, actual, 0, Tolerances.rounded(DType.FLOAT32));
    }

    @ParameterizedTest
    @EnumSource(Kept.class)
    void manyRanges(Kept kept) {
        List<AdamRange> together = new ArrayList<>();
        List<AdamRange> apart = new ArrayList<>();
        List<AdamWWitness> witnesses = new ArrayList<>();
        List<double[]> gradients = new ArrayList<>();
        List<double[]> expected = new ArrayList<>();
        for (int i = 0; i < COUNTS.length; i++) {
            double[] gradient = open.normal(DType.FLOAT32, COUNTS[i], 1);
            double[] weight = open.normal(kept == Kept.OWN ? DType.FLOAT32 : DType.BFLOAT16, COUNTS[i], 1);
            together.add(range(kept, i, gradient, weight));
            apart.add(range(kept, i, gradient, weight));
            double[] decays = new double[COUNTS[i]];
            Arrays.fill(decays, decay(i));
            witnesses.add(new AdamWWitness(BETA1, BETA2, EPSILON, decays, weight.clone()));
            gradients.add(gradient);
            expected.add(weight);
        }
        AdamRanges ranges = AdamRanges.of(together, open.scope());
        assertEquals(COUNTS.length, ranges.count());
        Tensor scale = vector(0.5);
        Tensor never = open.ints(0);
        for (int step = 1; step <= 3; step++) {
            Tensor number = open.ints(step);
            step(ranges, number, scale, never);
            for (int i = 0; i < COUNTS.length; i++) {
                AdamRange one = apart.get(i);
                ADAM.step(one, number, scale, never, open.stream());
                expected.set(i, witnesses.get(i).step(rate(i), gradients.get(i), 0.5));
            }
        }
        step(ranges, open.ints(4), scale, open.ints(1)); // skipped
        for (int i = 0; i < COUNTS.length; i++) {
            AdamRange one = together.get(i);
            assertClose("weights of range " + i, expected.get(i), weights(one));
            assertClose("means of range " + i, witnesses.get(i).mean(), open.read(one.mean()));
            assertClose("squares of range " + i, witnesses.get(i).square(), open.read(one.square()));
            List<int[]> bits = bits(apart.get(i));
            List<int[]> actual = bits(one);
            for (int tensor = 0; tensor < bits.size(); tensor++) {
                assertArrayEquals(bits.get(tensor), actual.get(tensor), "tensor " + tensor + " of range " + i);
            }
        }
    }

    private static Tensor of(DType dtype, long count) {
        return open.scope().tensor(dtype, count);
    }

    private static AdamRange of(DType weights, @Nullable Tensor master, Tensor mean) {
        return new AdamRange(
                of(DType.FLOAT32, 8), of(weights, 8), mean, of(DType.FLOAT32, 8), master, of(DType.FLOAT32, 1), 0);
    }

    private static void refused(String text, AdamRange... ranges) {
        assertThrown(IllegalArgumentException.class, text, () -> AdamRanges.of(List.of(ranges), open.scope()));
    }

    @Test
    void refusals() {
        AdamRange good = of(DType.FLOAT32, null, of(DType.FLOAT32, 8));
        refused("ranges: expected at least one, got none");
        refused(
                "ranges: in range 1 mean: expected FLOAT32[8], got FLOAT32[7]",
                good,
                of(DType.FLOAT32, null, of(DType.FLOAT32, 7)));
        refused(
                "ranges: expected the same types in all, got gradients of FLOAT32, weights of BFLOAT16, moments of FLOAT32,"
                        + " masters of FLOAT32 in range 1 and gradients of FLOAT32, weights of FLOAT32, moments of FLOAT32 in"
                        + " range 0; make AdamRanges of each",
                good,
                of(DType.BFLOAT16, of(DType.FLOAT32, 8), of(DType.FLOAT32, 8)));
        Tensor long9 = of(DType.FLOAT32, 9);
        refused(
                "ranges: expected memory of its own for mean of range 1, got some of mean of range 0's; one is written to"
                        + " while the other is read or written",
                of(DType.FLOAT32, null, open.scope().view(long9, 0, 8)),
                of(DType.FLOAT32, null, open.scope().view(long9, 1, 8)));
        refused(
                "ranges: expected memory of its own for rate of range 1, got some of mean of range 0's; one is written to"
                        + " while the other is read or written",
                good,
                new AdamRange(
                        of(DType.FLOAT32, 8),
                        of(DType.FLOAT32, 8),
                        of(DType.FLOAT32, 8),
                        of(DType.FLOAT32, 8),
                        null,
                        open.scope().view(good.mean(), 3, 1),
                        0));
        assertThrown(
                IllegalArgumentException.class,
                "weightDecay: expected a number of at least 0, got -1.0",
                () -> new AdamRange(long9, long9, long9, long9, null, long9, -1));
        AdamRanges ranges = AdamRanges.of(List.of(good), open.scope());
        assertEquals(
                "AdamRanges of 1 range, gradients of FLOAT32, weights of FLOAT32, moments of FLOAT32",
                ranges.toString());
        assertThrown(
                IllegalArgumentException.class,
                "square: expected memory of its own, got some of gradientScale's; it is written to while that is read or"
                        + " written",
                () -> step(ranges, open.ints(1), open.scope().view(good.square(), 2, 1), open.ints(0)));
        assertThrown(
                IllegalArgumentException.class,
                "step: expected INT32[1], got FLOAT32[9]",
                () -> step(ranges, long9, vector(1), open.ints(0)));
    }

    /** The table has addresses in it: it is of no use once one of them is another tensor's. */
    @Test
    void memoryThatIsHandedOutAnew() {
        try (Scope scope = open.device().openScope()) {
            AdamRange range = new AdamRange(
                    scope.tensor(DType.FLOAT32, 8),
                    of(DType.FLOAT32, 8),
                    of(DType.FLOAT32, 8),
                    of(DType.FLOAT32, 8),
                    null,
                    of(DType.FLOAT32, 1),
                    0);
            AdamRanges ranges = AdamRanges.of(List.of(range), open.scope());
            scope.restart();
            scope.tensor(DType.FLOAT32, 8);
            assertThrown(
                    IllegalStateException.class,
                    "ranges: expected the tensors that they were made of, got gradient of range 0 handed out anew, for its"
                            + " scope was restarted; make them again with AdamRanges.of",
                    () -> step(ranges, open.ints(1), vector(1), open.ints(0)));
        }
    }

    @Test
    void makesNoGarbage() {
        List<AdamRange> two = List.of(
                range(Kept.REMAINDERS, 0, new double[8], new double[8]),
                range(Kept.REMAINDERS, 1, new double[5], new double[5]));
        AdamRanges ranges = AdamRanges.of(two, open.scope());
        Tensor one = open.ints(1);
        Tensor zero = open.ints(0);
        Tensor scale = vector(1);
        Allocation.assertNone("Adam over ranges", () -> step(ranges, one, scale, zero));
    }
}
