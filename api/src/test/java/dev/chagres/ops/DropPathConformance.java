package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.QkvFormat;
import dev.chagres.witness.PhiloxWitness;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code DropPath} against Philox by its formula, and double precision. */
@Tag("L0")
@Tag("L1")
class DropPathConformance {
    private static final long OFFSET = (1L << 40) + 5;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 5, 300})
    void factors(int sequences) {
        for (float probability : new float[] {0, 0.3f, 0.75f}) {
            long seed = open.random().nextLong();
            Tensor factors = open.unwritten(DType.FLOAT32, sequences);
            DropPath.dropPathFactors(open.longs(seed, OFFSET), probability, factors, open.stream());
            float[] actual = open.read(factors);
            for (int b = 0; b < sequences; b++) {
                boolean kept = PhiloxWitness.word(seed, OFFSET + b / 4, b % 4) * 0x1p-32 >= probability;
                assertEquals(kept ? 1 / (1 - probability) : 0, actual[b], 1e-6, "factor " + b);
            }
        }
    }

    record Case(DType dtype, TokenRows tokens, int columns) {
        long extent() {
            return tokens.format() == QkvFormat.BSHD
                    ? tokens.padded()
                    : tokens.lengths().size();
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (int columns : new int[] {1, 7, 64, 129}) {
                cases.add(new Case(dtype, TokenRows.packed(3, 0, 17, 1), columns));
                cases.add(new Case(dtype, TokenRows.padded(QkvFormat.BSHD, 9, 9, 9, 9), columns));
                cases.add(new Case(dtype, TokenRows.padded(QkvFormat.SBHD, 9, 9, 9, 9), columns));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void sumAndGradient(Case c) {
        int tokens = c.tokens.tokens();
        int sequences = c.tokens.lengths().size();
        double[] factors = new double[sequences];
        for (int b = 0; b < sequences; b++) {
            factors[b] = b % 2 == 0 ? 1.25 : 0;
        }
        double[] x = open.normal(c.dtype, tokens * c.columns, 1);
        double[] residual = open.normal(c.dtype, tokens * c.columns, 1);
        double[] scaled = scaled(c, x, factors);
        double[] sum = new double[x.length];
        for (int i = 0; i < x.length; i++) {
            sum[i] = residual[i] + scaled[i];
        }
        // What is left out is not read: NaN there stays there.
        double[] poisoned = x.clone();
        for (int[] rows : List.of(c.tokens.rows().get(1))) {
            for (int row : rows) {
                poisoned[row * c.columns] = Double.NaN;
            }
        }
        Tensor factorTensor = open.tensor(DType.FLOAT32, factors, sequences);
        Tensor branch = open.tensor(c.dtype, poisoned, tokens, c.columns);
        Tensor y = open.unwritten(c.dtype, tokens, c.columns);
        Tensor stream = open.tensor(c.dtype, residual, tokens, c.columns);
        QkvFormat format = c.tokens.format();
        DropPath.scaleSequencesAdd(
                branch, stream, y, factorTensor, positions(offsets(c), format, c.extent()), open.stream());
        // The product is rounded before the sum.
        open.assertClose("y", sum, open.read(y), 2, Tolerances.rounded(c.dtype));
        Tensor dx = open.unwritten(c.dtype, tokens, c.columns);
        DropPath.scaleSequencesAdd(
                branch, null, dx, factorTensor, positions(offsets(c), format, c.extent()), open.stream());
        open.assertClose("dx", scaled, dx, Tolerances.rounded(c.dtype));

        // A stretch of the tokens gives what all give there.
        int first = tokens / 3;
        int count = tokens / 2;
        Tensor stretch = open.unwritten(c.dtype, count, c.columns);
        DropPath.scaleSequencesAdd(
                rows(branch, first, count),
                rows(stream, first, count),
                stretch,
                factorTensor,
                positions(offsets(c), format, c.extent()),
                first,
                tokens,
                open.stream());
        float[] whole = open.read(y);
        assertArrayEquals(
                Arrays.copyOfRange(whole, first * c.columns, (first + count) * c.columns),
                open.read(stretch),
                "stretch");

        DropPath.scaleSequencesAdd(
                branch, stream, stream, factorTensor, positions(offsets(c), format, c.extent()), open.stream());
        assertArrayEquals(open.read(y), open.read(stream), "in the place of the residual");
        DropPath.scaleSequencesAdd(
                branch, null, branch, factorTensor, positions(offsets(c), format, c.extent()), open.stream());
        assertArrayEquals(open.read(dx), open.read(branch), "in place");
    }

    private static Tensor rows(Tensor of, int first, int count) {
        return open.scope().view(of, first * of.size(1), count, of.size(1));
    }

    private static double[] scaled(Case c, double[] x, double[] factors) {
        double[] scaled = new double[x.length];
        List<int[]> rows = c.tokens.rows();
        for (int sequence = 0; sequence < rows.size(); sequence++) {
            for (int row : rows.get(sequence)) {
                for (int i = row * c.columns; i < (row + 1) * c.columns; i++) {
                    scaled[i] = factors[sequence] * x[i];
                }
            }
        }
        return scaled;
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

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static TokenPositions positions(@Nullable Tensor cuSeqlens, QkvFormat format, long extent) {
        TokenPositions positions = new TokenPositions();
        return cuSeqlens == null ? positions.padded(format, extent) : positions.packed(cuSeqlens);
    }

    private static void refused(
            String text,
            Tensor x,
            @Nullable Tensor residual,
            Tensor y,
            Tensor factors,
            @Nullable Tensor cuSeqlens,
            QkvFormat format,
            long extent) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> DropPath.scaleSequencesAdd(
                        x, residual, y, factors, positions(cuSeqlens, format, extent), open.stream()));
    }

    private static void refusedStretch(String text, Tensor x, long first, long whole) {
        Tensor two = of(DType.FLOAT32, 2);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> DropPath.scaleSequencesAdd(
                        x, null, x, two, new TokenPositions().padded(QkvFormat.SBHD, 2), first, whole, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.FLOAT32, 6, 4);
        Tensor two = of(DType.FLOAT32, 2);
        refused(
                "residual: expected FLOAT32[6, 4], got FLOAT32[6, 5]",
                x,
                of(DType.FLOAT32, 6, 5),
                x,
                two,
                null,
                QkvFormat.SBHD,
                2);
        refused("factors: expected FLOAT32[3], got FLOAT32[2]", x, null, x, two, null, QkvFormat.SBHD, 3);
        refused("factors: expected FLOAT32[3], got FLOAT32[2]", x, null, x, two, null, QkvFormat.BSHD, 2);
        refused("factors: expected FLOAT32[1], got FLOAT32[2]", x, null, x, two, open.ints(0, 6), QkvFormat.THD, 1);
        refused(
                "x: expected a multiple of 4 tokens, the sequences of a batch, got FLOAT32[6, 4]",
                x,
                null,
                x,
                two,
                null,
                QkvFormat.SBHD,
                4);
        refused(
                "y: expected memory of its own, got some of factors's; it is written to while that is read or written",
                x,
                null,
                x,
                open.scope().view(x, 0, 2),
                null,
                QkvFormat.SBHD,
                2);
        refusedStretch(
                "first, whole: expected a stretch of 6 tokens, as x has, among all, got one from token 3 of 8 on",
                x,
                3,
                8);
        refusedStretch(
                "first, whole: expected a stretch of 6 tokens, as x has, among all, got one from token 0 of "
                        + Long.MIN_VALUE + " on",
                x,
                0,
                Long.MIN_VALUE);
        refusedStretch(
                "first, whole: expected a stretch of 6 tokens, as x has, among all, got one from token -1 of 8 on",
                x,
                -1,
                8);
        refusedStretch(
                "x: expected a multiple of 2 tokens, the sequences of a batch, got a part of 9, FLOAT32[6, 4]",
                x,
                1,
                9);
        Tensor state = of(DType.INT64, 2);
        assertThrown(
                IllegalArgumentException.class,
                "probability: expected a number of at least 0 and below 1, got -0.5",
                () -> DropPath.dropPathFactors(state, -0.5f, two, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "factors: expected FLOAT32[B], got FLOAT32[6, 4]",
                () -> DropPath.dropPathFactors(state, 0.5f, x, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "rngState: expected INT64[2], got FLOAT32[2]",
                () -> DropPath.dropPathFactors(two, 0.5f, two, open.stream()));
    }

    @Test
    void withoutTokens() {
        Tensor none = of(DType.FLOAT32, 0, 4);
        DropPath.scaleSequencesAdd(
                none, none, none, of(DType.FLOAT32, 2), new TokenPositions().packed(open.ints(0, 0, 0)), open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 6, 4, 1));
        Tensor factors = open.unwritten(DType.FLOAT32, 2);
        Tensor state = open.longs(1, 2);
        Tensor cu = open.ints(0, 3, 6);
        TokenPositions tokens = new TokenPositions().packed(cu);
        Allocation.assertNone("drop path", () -> {
            DropPath.dropPathFactors(state, 0.5f, factors, open.stream());
            DropPath.scaleSequencesAdd(x, null, x, factors, tokens, open.stream());
        });
    }
}
