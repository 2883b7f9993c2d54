package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.FusedRope.Pairing;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code FusedRope} against double precision: every format, both pairings, part of a head, start positions. */
@Tag("L0")
@Tag("L1")
class FusedRopeConformance {
    private static final int POSITIONS = 200;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Each sequence {@code i} starts at position {@code start * i}. */
    record Case(DType dtype, TokenRows tokens, int heads, int headDim, int rotated, Pairing pairing, int start) {
        int width() {
            return heads * headDim;
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Pairing pairing : Pairing.values()) {
                for (QkvFormat format : QkvFormat.values()) {
                    TokenRows tokens = format == QkvFormat.THD
                            ? TokenRows.packed(1, 0, 17, 128)
                            : TokenRows.padded(format, 33, 33, 33, 33);
                    cases.add(new Case(dtype, tokens, 2, 16, 16, pairing, 0));
                    cases.add(new Case(dtype, tokens, 3, 64, 32, pairing, 0));
                    cases.add(new Case(dtype, tokens, 1, 6, 2, pairing, 0));
                }
                cases.add(new Case(dtype, TokenRows.padded(QkvFormat.BSHD, 9, 9, 9), 2, 16, 16, pairing, 40));
                cases.add(new Case(dtype, TokenRows.padded(QkvFormat.SBHD, 9, 9, 9), 2, 16, 8, pairing, 40));
                cases.add(new Case(dtype, TokenRows.packed(9, 5), 2, 16, 16, pairing, 40));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        double[] angles = angles(c);
        Tensor freqs = open.tensor(DType.FLOAT32, angles, POSITIONS, 1, 1, c.rotated);
        double[] x = open.normal(c.dtype, c.tokens.tokens() * c.width(), 1);
        Tensor input = heads(c, x);
        Tensor output = open.unwritten(c.dtype, input.shape().sizes());
        new FusedRope(freqs, c.pairing)
                .forward(input, offsets(c), starts(c), output, c.tokens.format(), longest(c), open.stream());
        open.assertClose("output", rotated(c, x, angles, 1), output, Tolerances.rounded(c.dtype));

        Tensor gradient = open.unwritten(c.dtype, input.shape().sizes());
        new FusedRope(freqs, c.pairing)
                .backward(input, offsets(c), starts(c), gradient, c.tokens.format(), longest(c), open.stream());
        open.assertClose("inputGrads", rotated(c, x, angles, -1), gradient, Tolerances.rounded(c.dtype));
    }

    /** Without a longest length packed sequences may be as long as there are positions. */
    @ParameterizedTest
    @MethodSource("cases")
    void withoutALongestLength(Case c) {
        Tensor freqs = open.tensor(DType.FLOAT32, angles(c), POSITIONS, 1, 1, c.rotated);
        Tensor input = heads(c, open.normal(c.dtype, c.tokens.tokens() * c.width(), 1));
        Tensor expected = open.unwritten(c.dtype, input.shape().sizes());
        Tensor actual = open.unwritten(c.dtype, input.shape().sizes());
        QkvFormat format = c.tokens.format();
        new FusedRope(freqs, c.pairing)
                .forward(input, offsets(c), starts(c), expected, format, longest(c), open.stream());
        new FusedRope(freqs, c.pairing).forward(input, offsets(c), starts(c), actual, format, open.stream());
        assertArrayEquals(open.read(expected), open.read(actual));
        new FusedRope(freqs, c.pairing)
                .backward(input, offsets(c), starts(c), expected, format, longest(c), open.stream());
        new FusedRope(freqs, c.pairing).backward(input, offsets(c), starts(c), actual, format, open.stream());
        assertArrayEquals(open.read(expected), open.read(actual));
    }

    private static long longest(Case c) {
        return c.tokens.format() == QkvFormat.THD ? c.tokens.longest() : c.tokens.padded();
    }

    private static @Nullable Tensor offsets(Case c) {
        if (c.tokens.format() != QkvFormat.THD) {
            return null;
        }
        int[] offsets = new int[c.tokens.lengths().size() + 1];
        for (int i = 1; i < offsets.length; i++) {
            offsets[i] = offsets[i - 1] + c.tokens.lengths().get(i - 1);
        }
        return open.ints(offsets);
    }

    private static @Nullable Tensor starts(Case c) {
        if (c.start == 0) {
            return null;
        }
        int[] starts = new int[c.tokens.lengths().size()];
        Arrays.setAll(starts, i -> c.start * i);
        return open.ints(starts);
    }

    private static Tensor heads(Case c, double[] values) {
        int batch = c.tokens.lengths().size();
        return switch (c.tokens.format()) {
            case THD -> open.tensor(c.dtype, values, c.tokens.tokens(), c.heads, c.headDim);
            case BSHD -> open.tensor(c.dtype, values, batch, c.tokens.padded(), c.heads, c.headDim);
            case SBHD -> open.tensor(c.dtype, values, c.tokens.padded(), batch, c.heads, c.headDim);
        };
    }

    /** Returns drawn angles, those of a pair alike. */
    private static double[] angles(Case c) {
        double[] angles = new double[POSITIONS * c.rotated];
        int half = c.rotated / 2;
        for (int position = 0; position < POSITIONS; position++) {
            double[] drawn = open.normal(DType.FLOAT32, half, 3);
            for (int i = 0; i < half; i++) {
                int first = c.pairing == Pairing.HALVES ? i : 2 * i;
                int second = c.pairing == Pairing.HALVES ? i + half : 2 * i + 1;
                angles[position * c.rotated + first] = drawn[i];
                angles[position * c.rotated + second] = drawn[i];
            }
        }
        return angles;
    }

    private static double[] rotated(Case c, double[] x, double[] angles, int direction) {
        double[] y = x.clone();
        List<int[]> sequences = c.tokens.rows();
        for (int sequence = 0; sequence < sequences.size(); sequence++) {
            int[] rows = sequences.get(sequence);
            for (int place = 0; place < rows.length; place++) {
                int position = place + c.start * sequence;
                for (int head = 0; head < c.heads; head++) {
                    int from = rows[place] * c.width() + head * c.headDim;
                    for (int i = 0; i < c.rotated / 2; i++) {
                        int first = from + (c.pairing == Pairing.HALVES ? i : 2 * i);
                        int second = from + (c.pairing == Pairing.HALVES ? i + c.rotated / 2 : 2 * i + 1);
                        double angle = direction * angles[position * c.rotated + first - from];
                        y[first] = x[first] * Math.cos(angle) - x[second] * Math.sin(angle);
                        y[second] = x[second] * Math.cos(angle) + x[first] * Math.sin(angle);
                    }
                }
            }
        }
        return y;
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @Test
    void withoutTokens() {
        Tensor freqs = of(DType.FLOAT32, 10, 1, 1, 16);
        Tensor x = of(DType.FLOAT32, 0, 2, 16);
        Tensor y = of(DType.FLOAT32, 0, 2, 16);
        new FusedRope(freqs, Pairing.HALVES).forward(x, open.ints(0, 0), null, y, QkvFormat.THD, 0, open.stream());
        new FusedRope(freqs, Pairing.HALVES).backward(x, open.ints(0), null, y, QkvFormat.THD, open.stream());
        Tensor dense = of(DType.FLOAT32, 2, 0, 2, 16);
        Tensor place = of(DType.FLOAT32, 2, 0, 2, 16);
        new FusedRope(freqs, Pairing.HALVES).forward(dense, null, null, place, QkvFormat.BSHD, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 256, 1), 8, 2, 16);
        Tensor y = of(DType.BFLOAT16, 8, 2, 16);
        Tensor cu = open.ints(0, 3, 8);
        Tensor freqs = open.tensor(DType.FLOAT32, new double[160], 10, 1, 1, 16);
        FusedRope rotation = new FusedRope(freqs, Pairing.HALVES);
        Allocation.assertNone("rotations", () -> {
            rotation.forward(x, cu, null, y, QkvFormat.THD, 5, open.stream());
            rotation.backward(x, cu, null, y, QkvFormat.THD, open.stream());
        });
    }
}
