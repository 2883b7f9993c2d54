package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.QkvFormat;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code TokenDropout} against its formula, and double precision. */
@Tag("L0")
@Tag("L1")
class TokenDropoutConformance {
    private static final int MASK = 32;
    private static final float KEPT = 0.88f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static List<TokenRows> rows() {
        return List.of(
                TokenRows.packed(1),
                TokenRows.packed(3, 0, 17, 1, 70),
                new TokenRows(QkvFormat.THD, List.of(3, 5, 0, 40), 0, List.of(2, 0, 4, 9)),
                TokenRows.padded(QkvFormat.BSHD, 9, 9, 4, 1),
                TokenRows.padded(QkvFormat.SBHD, 40, 40, 33, 2, 7));
    }

    private static int[] ids(TokenRows tokens, double share) {
        int[] ids = new int[tokens.tokens()];
        for (int t = 0; t < ids.length; t++) {
            ids[t] = open.random().nextDouble() < share ? MASK : t % MASK;
        }
        return ids;
    }

    private static double[] expected(TokenRows tokens, int[] ids) {
        double[] factors = new double[ids.length];
        for (int[] sequence : tokens.rows()) {
            double masked = 0;
            for (int row : sequence) {
                masked += ids[row] == MASK ? 1 : 0;
            }
            for (int row : sequence) {
                factors[row] = ids[row] == MASK ? 0 : KEPT / (1 - masked / sequence.length);
            }
        }
        return factors;
    }

    private static Tensor factors(TokenRows tokens, int[] ids) {
        Sequences sequences = tokens.sequences(open.scope());
        Tensor factors = open.unwritten(DType.FLOAT32, ids.length);
        CuSeqlens places = sequences.cuSeqlensPadded();
        TokenDropout.factors(
                open.ints(ids),
                sequences.cuSeqlens().offsets(),
                places == null ? null : places.offsets(),
                tokens.format(),
                MASK,
                KEPT,
                factors,
                open.stream());
        return factors;
    }

    @ParameterizedTest
    @MethodSource("rows")
    void factorsOfEveryShare(TokenRows tokens) {
        for (double share : new double[] {0, 0.15, 0.6, 1}) {
            int[] ids = ids(tokens, share);
            double[] expected = expected(tokens, ids);
            float[] actual = open.read(factors(tokens, ids));
            for (int t = 0; t < ids.length; t++) {
                assertEquals(expected[t], actual[t], 3e-7 * expected[t], "token " + t);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("rows")
    void scale(TokenRows tokens) {
        int[] ids = ids(tokens, 0.3);
        double[] factors = expected(tokens, ids);
        Tensor scales = factors(tokens, ids);
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (int columns : new int[] {1, 7, 64}) {
                double[] x = open.normal(dtype, ids.length * columns, 1);
                double[] expected = new double[x.length];
                for (int i = 0; i < x.length; i++) {
                    expected[i] = factors[i / columns] * x[i];
                }
                Tensor y = open.tensor(dtype, x, ids.length, columns);
                TokenDropout.scale(y, y, scales, 0, open.stream());
                open.assertClose("y", expected, open.read(y), 1, Tolerances.rounded(dtype));
            }
        }
    }

    @Test
    void scalesAPartOfTheTokens() {
        Tensor factors = open.tensor(DType.FLOAT32, new double[] {1, 2, 0, 3}, 4);
        Tensor x = open.tensor(DType.FLOAT32, new double[] {5, 6, Double.NaN, 8}, 2, 2);
        TokenDropout.scale(x, x, factors, 1, open.stream());
        float[] actual = open.read(x);
        assertEquals(10, actual[0]);
        assertEquals(12, actual[1]);
        assertEquals(0, actual[2]);
        assertEquals(0, actual[3]);
    }

    private static void refused(
            String text, Tensor ids, Tensor cuSeqlens, QkvFormat format, float kept, Tensor factors) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> TokenDropout.factors(ids, cuSeqlens, null, format, MASK, kept, factors, open.stream()));
    }

    @Test
    void refusals() {
        Tensor ids = open.ints(1, 2, 3, 4);
        Tensor offsets = open.ints(0, 2, 4);
        Tensor factors = open.unwritten(DType.FLOAT32, 4);
        refused(
                "factors: expected FLOAT32[4], got FLOAT32[5]",
                ids,
                offsets,
                QkvFormat.THD,
                1,
                open.unwritten(DType.FLOAT32, 5));
        refused("kept: expected a finite number of at least 0, got -1.0", ids, offsets, QkvFormat.THD, -1, factors);
        refused(
                "kept: expected a finite number of at least 0, got NaN",
                ids,
                offsets,
                QkvFormat.THD,
                Float.NaN,
                factors);
        refused(
                "cuSeqlens: expected INT32[B + 1] with B at least 1, got INT32[1]",
                ids,
                open.ints(0),
                QkvFormat.THD,
                1,
                factors);
        refused(
                "ids: expected a multiple of 3 tokens, the sequences of a batch, got INT32[4]",
                ids,
                open.ints(0, 1, 2, 3),
                QkvFormat.BSHD,
                1,
                factors);
        refused(
                "ids: expected INT32[T] of at most 2147483647 tokens, got FLOAT32[4]",
                factors,
                offsets,
                QkvFormat.THD,
                1,
                factors);
        assertThrown(
                IllegalArgumentException.class,
                "cuSeqlensPadded: expected null for padded tokens, BSHD, got INT32[3]",
                () -> TokenDropout.factors(ids, offsets, offsets, QkvFormat.BSHD, MASK, 1, factors, open.stream()));
        Tensor x = open.unwritten(DType.FLOAT32, 5, 2);
        assertThrown(
                IllegalArgumentException.class,
                "factors: expected FLOAT32 of at least 5 tokens, as x has, got FLOAT32[4]",
                () -> TokenDropout.scale(x, x, factors, 0, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor ids = open.ints(1, 2, MASK, 4);
        Tensor offsets = open.ints(0, 2, 4);
        Tensor factors = open.unwritten(DType.FLOAT32, 4);
        Tensor x = open.tensor(DType.BFLOAT16, new double[8], 4, 2);
        Allocation.assertNone("token dropout", () -> {
            TokenDropout.factors(ids, offsets, null, QkvFormat.THD, MASK, KEPT, factors, open.stream());
            TokenDropout.scale(x, x, factors, 0, open.stream());
        });
    }
}
