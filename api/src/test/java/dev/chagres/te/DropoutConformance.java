package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.witness.PhiloxWitness;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Dropout} against Philox by TE's use of its bytes, and double precision. */
@Tag("L0")
@Tag("L1")
class DropoutConformance {
    private static final int CHUNK = 16;
    private static final long OFFSET = (1L << 40) + 8;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int count, float probability) {}

    static List<Case> cases() {
        return List.of(
                new Case(DType.BFLOAT16, 16, 0.5f),
                new Case(DType.BFLOAT16, 48, 0),
                new Case(DType.BFLOAT16, 32 * 1031, 0.1f),
                new Case(DType.FLOAT16, 8208, 0.9f),
                new Case(DType.FLOAT16, 0, 0.5f));
    }

    /** Returns which elements are kept: the highest bits of four words lie two apart, and their upper halves in between. */
    private static boolean[] kept(long seed, int count, float probability) {
        boolean[] kept = new boolean[count];
        long threshold = (long) Math.floor(probability * 256);
        for (int chunk = 0; chunk < count / CHUNK; chunk++) {
            int dropped = 0;
            for (int word = 0; word < 4; word++) {
                long drawn = PhiloxWitness.word(seed, chunk, OFFSET / 4, word);
                int highest = 0;
                for (int shift = 0; shift < 32; shift += 8) {
                    highest |= (drawn >> shift & 0xff) < threshold ? 0x80 << shift : 0;
                }
                dropped = dropped >>> 2 | highest;
            }
            dropped |= dropped >>> 17;
            for (int i = 0; i < CHUNK; i++) {
                kept[chunk * CHUNK + i] = (dropped >> i & 1) == 0;
            }
        }
        return kept;
    }

    private static double[] applied(boolean[] kept, double[] values, float probability) {
        double[] expected = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            expected[i] = kept[i] ? values[i] / (1 - probability) : 0;
        }
        return expected;
    }

    private static void assertMask(boolean[] kept, Tensor mask) {
        boolean[] bits = kept.length == 0 ? kept : open.bits(mask, kept.length);
        for (int i = 0; i < kept.length; i++) {
            assertEquals(kept[i], bits[i], "bit " + i);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void resultMaskAndGradient(Case c) {
        long seed = open.random().nextLong();
        double[] x = open.normal(c.dtype, c.count, 1);
        double[] dy = open.normal(c.dtype, c.count, 1);
        Tensor y = open.unwritten(c.dtype, c.count);
        Tensor dx = open.unwritten(c.dtype, c.count);
        Tensor mask = of(DType.BYTE, c.count / 8);
        Tensor input = open.tensor(c.dtype, x, c.count);
        Dropout.dropoutFwd(input, y, mask, open.longs(seed, OFFSET), c.probability, open.stream());
        Dropout.dropoutBwd(open.tensor(c.dtype, dy, c.count), mask, dx, c.probability, open.stream());
        boolean[] kept = kept(seed, c.count, c.probability);
        assertMask(kept, mask);
        open.assertClose("y", applied(kept, x, c.probability), open.read(y), 1, Tolerances.rounded(c.dtype));
        open.assertClose("dx", applied(kept, dy, c.probability), open.read(dx), 1, Tolerances.rounded(c.dtype));
    }

    /** What is dropped does not show, even where it is no number. */
    @Test
    void droppedNumbersAreZero() {
        double[] infinite = new double[1024];
        java.util.Arrays.fill(infinite, Double.POSITIVE_INFINITY);
        Tensor y = open.unwritten(DType.BFLOAT16, 1024);
        Tensor x = open.tensor(DType.BFLOAT16, infinite, 1024);
        Dropout.dropoutFwd(x, y, of(DType.BYTE, 128), open.longs(7, OFFSET), 0.5f, open.stream());
        boolean[] kept = kept(7, 1024, 0.5f);
        float[] values = open.read(y);
        for (int i = 0; i < values.length; i++) {
            assertEquals(kept[i] ? Float.POSITIVE_INFINITY : 0, values[i], "element " + i);
        }
    }

    @Test
    void quantized() {
        for (DType from : new DType[] {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}) {
            for (DType to : new DType[] {DType.BFLOAT16, DType.FLOAT16}) {
                Float8Matrix x = Float8Matrix.rowwise(open, Scaling.TENSOR, from, 24, 48);
                Tensor y = open.unwritten(to, 24, 48);
                Tensor mask = of(DType.BYTE, 24 * 48 / 8);
                Dropout.dropoutFwd(x.tensor(), y, mask, open.longs(5, OFFSET), 0.25f, open.stream());
                boolean[] kept = kept(5, 24 * 48, 0.25f);
                assertMask(kept, mask);
                double[] expected = applied(kept, Comparison.entries(x.values()), 0.25f);
                open.assertClose("y", expected, y, Tolerances.rounded(to));
            }
        }
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 64, 1), 4, 16);
        Tensor y = open.unwritten(DType.BFLOAT16, 4, 16);
        Tensor mask = of(DType.BYTE, 8);
        Tensor state = open.longs(1, 0);
        Allocation.assertNone("dropout", () -> {
            Dropout.dropoutFwd(x, y, mask, state, 0.5f, open.stream());
            Dropout.dropoutBwd(y, mask, x, 0.5f, open.stream());
        });
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(
            String text, Tensor input, Tensor output, Tensor mask, Tensor state, float probability) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Dropout.dropoutFwd(input, output, mask, state, probability, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.BFLOAT16, 2, 16);
        Tensor y = of(DType.BFLOAT16, 2, 16);
        Tensor mask = of(DType.BYTE, 4);
        Tensor state = open.longs(1, 0);
        refused(
                "input: expected elements of FLOAT16 or BFLOAT16, got FLOAT32[16]; ops.Dropout takes FLOAT32",
                of(DType.FLOAT32, 16),
                y,
                mask,
                state,
                0.5f);
        refused(
                "input: expected a multiple of 16 elements, which TE's kernel takes at once, got BFLOAT16[24]; ops.Dropout takes"
                        + " any number",
                of(DType.BFLOAT16, 24),
                of(DType.BFLOAT16, 24),
                of(DType.BYTE, 3),
                state,
                0.5f);
        refused("output: expected BFLOAT16[2, 16], got FLOAT16[2, 16]", x, of(DType.FLOAT16, 2, 16), mask, state, 0.5f);
        refused("mask: expected BYTE[4], got BYTE[32]", x, y, of(DType.BYTE, 32), state, 0.5f);
        refused("rngState: expected INT64[2], got INT64[1]", x, y, mask, open.longs(1), 0.5f);
        refused("probability: expected a number of at least 0 and below 1, got 1.0", x, y, mask, state, 1);
        refused(
                "output: expected memory of its own, got some of input's; it is written to while that is read or written",
                x,
                x,
                mask,
                state,
                0.5f);
        refused(
                "mask: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view that"
                        + " does not; copy it into a tensor",
                x,
                y,
                open.scope().view(of(DType.BYTE, 8), 1, 4),
                state,
                0.5f);
        assertThrown(
                IllegalArgumentException.class,
                "gradInput: expected memory of its own, got some of gradOutput's; it is written to while that is read or written",
                () -> Dropout.dropoutBwd(x, mask, x, 0.5f, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "mask: expected BYTE[4], got BYTE[8]",
                () -> Dropout.dropoutBwd(x, of(DType.BYTE, 8), y, 0.5f, open.stream()));
    }

    @Test
    void refusalsOfEightBits() {
        Tensor mask = of(DType.BYTE, 4);
        Tensor state = open.longs(1, 0);
        QuantizedTensor blocks = open.scope()
                .quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 2, 16)
                .allocateRowwise(open.scope());
        assertThrown(
                IllegalArgumentException.class,
                "input: expected scaling by TENSOR, for TE's dropout knows one scale, got FLOAT8_E4M3[2, 16] BLOCK_1D",
                () -> Dropout.dropoutFwd(blocks, of(DType.BFLOAT16, 2, 16), mask, state, 0.5f, open.stream()));
        QuantizedTensor x = Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, 2, 16, 1);
        assertThrown(
                IllegalArgumentException.class,
                "output: expected [2, 16], got BFLOAT16[32]",
                () -> Dropout.dropoutFwd(x, of(DType.BFLOAT16, 32), mask, state, 0.5f, open.stream()));
    }
}
