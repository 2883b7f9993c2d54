package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.internal.Checks;
import dev.chagres.ops.Rotary.Direction;
import dev.chagres.te.FusedRope.Pairing;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Rotary} against double precision: query and key are rotated, in place or on the way, the values stay. */
@Tag("L0")
@Tag("L1")
class RotaryConformance {
    private static final int POSITIONS = 130;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Heads, and the elements of each that are rotated. */
    record Turn(QkvHeads heads, int rotatedDim, Pairing pairing) {}

    record Case(DType dtype, TokenRows tokens, Turn turn, Direction direction, Start start) {
        int columns() {
            return Math.toIntExact(turn.heads.columns());
        }

        int keyColumns() {
            return turn.heads.keyHeads() * turn.heads.headDim();
        }

        int sequences() {
            return tokens.lengths().size();
        }
    }

    enum Start {
        ZERO,
        LATER
    }

    static List<Case> cases() {
        List<Turn> turns = List.of(
                new Turn(new QkvHeads(2, 2, 16), 16, Pairing.HALVES),
                new Turn(new QkvHeads(3, 3, 6), 6, Pairing.HALVES),
                new Turn(new QkvHeads(6, 2, 32), 16, Pairing.HALVES),
                new Turn(new QkvHeads(4, 1, 16), 16, Pairing.INTERLEAVED),
                new Turn(new QkvHeads(4, 2, 24), 8, Pairing.INTERLEAVED));
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Direction direction : Direction.values()) {
                for (QkvFormat format : QkvFormat.values()) {
                    TokenRows tokens = format == QkvFormat.THD
                            ? TokenRows.packed(1, 0, 17, 100)
                            : TokenRows.padded(format, 33, 33, 33, 33);
                    for (Turn turn : turns) {
                        cases.add(new Case(dtype, tokens, turn, direction, Start.ZERO));
                        cases.add(new Case(dtype, tokens, turn, direction, Start.LATER));
                    }
                }
            }
        }
        return cases;
    }

    /** The tensors of a case, and what double precision makes of its buffer. */
    private static final class Setup {
        private final double[] qkv;
        private final double[] rotated;
        private final RotaryTable table;
        private final TokenPositions positions = new TokenPositions();

        Setup(Case c) {
            qkv = open.normal(c.dtype, c.tokens.tokens() * c.columns(), 1);
            double[] drawn = open.normal(DType.FLOAT32, POSITIONS * c.turn.rotatedDim / 2, 3);
            int half = c.turn.rotatedDim / 2;
            double[] angles = new double[POSITIONS * c.turn.rotatedDim];
            for (int i = 0; i < drawn.length; i++) {
                int pair = i % half;
                int row = i / half * c.turn.rotatedDim;
                boolean neighbours = c.turn.pairing == Pairing.INTERLEAVED;
                angles[row + (neighbours ? 2 * pair : pair)] = drawn[i];
                angles[row + (neighbours ? 2 * pair + 1 : pair + half)] = drawn[i];
            }
            table = new RotaryTable(open.tensor(DType.FLOAT32, angles, POSITIONS, c.turn.rotatedDim), c.turn.pairing);
            int[] starts = new int[c.sequences()];
            for (int i = 0; i < starts.length && c.start == Start.LATER; i++) {
                starts[i] = 7 * i;
            }
            if (c.tokens.format() == QkvFormat.THD) {
                positions.packed(Checks.given("offsets", offsets(c)));
            } else {
                positions.padded(
                        c.tokens.format(), c.tokens.format() == QkvFormat.BSHD ? c.tokens.padded() : c.sequences());
            }
            positions.startingAt(c.start == Start.LATER ? open.ints(starts) : null);
            rotated = rotated(c, qkv, drawn, starts);
        }
    }

    private static double[] rotated(Case c, double[] qkv, double[] angles, int[] starts) {
        int half = c.turn.rotatedDim / 2;
        boolean neighbours = c.turn.pairing == Pairing.INTERLEAVED;
        double[] expected = qkv.clone();
        List<int[]> sequences = c.tokens.rows();
        for (int sequence = 0; sequence < sequences.size(); sequence++) {
            int[] rows = sequences.get(sequence);
            for (int i = 0; i < rows.length; i++) {
                for (int head = 0; head < c.turn.heads.heads() + c.turn.heads.keyHeads(); head++) {
                    for (int pair = 0; pair < half; pair++) {
                        int start = rows[i] * c.columns() + head * c.turn.heads.headDim();
                        int first = start + (neighbours ? 2 * pair : pair);
                        int second = start + (neighbours ? 2 * pair + 1 : pair + half);
                        double angle = angles[(i + starts[sequence]) * half + pair]
                                * (c.direction == Direction.FORWARD ? 1 : -1);
                        double a = qkv[first];
                        double b = qkv[second];
                        expected[first] = a * Math.cos(angle) - b * Math.sin(angle);
                        expected[second] = b * Math.cos(angle) + a * Math.sin(angle);
                    }
                }
            }
        }
        return expected;
    }

    private static double[] part(Case c, double[] qkv, int first, int columns) {
        double[] part = new double[c.tokens.tokens() * columns];
        for (int token = 0; token < c.tokens.tokens(); token++) {
            System.arraycopy(qkv, token * c.columns() + first, part, token * columns, columns);
        }
        return part;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void queryAndKeyAreRotatedInPlace(Case c) {
        Setup setup = new Setup(c);
        Tensor tensor = open.tensor(c.dtype, setup.qkv, c.tokens.tokens(), c.columns());
        Rotary.rotaryPacked(tensor, c.turn.heads, setup.table, setup.positions, c.direction, open.stream());
        open.assertClose("qkv", setup.rotated, tensor, Tolerances.rounded(c.dtype));
    }

    /** Forward takes the buffer apart, backward puts it together: each rotates its own way, or not at all. */
    @ParameterizedTest
    @MethodSource("cases")
    void partsAreCopied(Case c) {
        Setup setup = new Setup(c);
        int keys = c.keyColumns();
        int queries = c.columns() - 2 * keys;
        int tokens = c.tokens.tokens();
        for (boolean rotates : new boolean[] {true, false}) {
            double[] to = rotates ? setup.rotated : setup.qkv;
            RotaryTable table = rotates ? setup.table : null;
            if (c.direction == Direction.FORWARD) {
                Tensor qkv = open.tensor(c.dtype, setup.qkv, tokens, c.columns());
                Tensor q = of(c.dtype, tokens, queries);
                Tensor k = of(c.dtype, tokens, keys);
                Tensor v = of(c.dtype, tokens, keys);
                Rotary.rotarySplit(qkv, c.turn.heads, table, setup.positions, q, k, v, open.stream());
                open.assertClose("q", part(c, to, 0, queries), q, Tolerances.rounded(c.dtype));
                open.assertClose("k", part(c, to, queries, keys), k, Tolerances.rounded(c.dtype));
                open.assertClose("v", part(c, to, queries + keys, keys), v, Tolerances.rounded(c.dtype));
            } else {
                Tensor dqkv = of(c.dtype, tokens, c.columns());
                Rotary.rotaryJoin(
                        open.tensor(c.dtype, part(c, setup.qkv, 0, queries), tokens, queries),
                        open.tensor(c.dtype, part(c, setup.qkv, queries, keys), tokens, keys),
                        open.tensor(c.dtype, part(c, setup.qkv, queries + keys, keys), tokens, keys),
                        c.turn.heads,
                        table,
                        setup.positions,
                        dqkv,
                        open.stream());
                open.assertClose("dqkv", to, dqkv, Tolerances.rounded(c.dtype));
            }
        }
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

    private static final QkvHeads ONE = new QkvHeads(1, 1, 4);

    private static RotaryTable table(long... sizes) {
        return new RotaryTable(of(DType.FLOAT32, sizes), Pairing.HALVES);
    }

    /** Tokens behind the last sequence, and positions that there are no angles for, stay as they are. */
    @Test
    void whatStays() {
        double[] qkv = open.normal(DType.FLOAT32, 5 * 12, 1);
        Tensor tensor = open.tensor(DType.FLOAT32, qkv, 5, 12);
        Tensor angles = open.tensor(DType.FLOAT32, new double[] {1, 2, 1, 2, 3, 4, 3, 4}, 2, 1, 1, 4);
        Rotary.rotaryPacked(
                tensor,
                ONE,
                new RotaryTable(angles, Pairing.HALVES),
                new TokenPositions().packed(open.ints(0, 3)),
                Direction.FORWARD,
                open.stream());
        float[] after = open.read(tensor);
        for (int i = 0; i < after.length; i++) {
            boolean stays = i >= 24 || i % 12 >= 8;
            if (stays) {
                assertArrayEquals(new float[] {(float) qkv[i]}, new float[] {after[i]}, "element " + i);
            }
        }
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(String text, Tensor qkv, RotaryTable table, TokenPositions positions) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Rotary.rotaryPacked(
                        qkv, new QkvHeads(2, 1, 6), table, positions, Direction.FORWARD, open.stream()));
    }

    private static TokenPositions packed(int... offsets) {
        return new TokenPositions().packed(open.ints(offsets));
    }

    @Test
    void refusals() {
        Tensor qkv = of(DType.FLOAT32, 6, 24);
        RotaryTable table = table(5, 6);
        refused(
                "qkv: expected [T, 24], of each token 2 heads of the query and 1 of key and value, of 6, got"
                        + " FLOAT32[6, 25]",
                of(DType.FLOAT32, 6, 25),
                table,
                packed(0, 6));
        String wanted = "angles: expected FLOAT32[positions, r] with r even, from 2 to the head dimension 6, got ";
        refused(wanted + "FLOAT32[5, 5]", qkv, table(5, 5), packed(0, 6));
        refused(wanted + "FLOAT32[5, 8]", qkv, table(5, 8), packed(0, 6));
        refused(wanted + "FLOAT32[8]", qkv, table(8), packed(0, 6));
        refused(wanted + "FLOAT32[5, 2, 6]", qkv, table(5, 2, 6), packed(0, 6));
        refused(
                "startPositions: expected INT32[1], got INT32[2]",
                qkv,
                table,
                packed(0, 6).startingAt(open.ints(0, 0)));
        TokenPositions positions = new TokenPositions();
        refused("extent: expected at least 1, got 0", qkv, table, positions.padded(QkvFormat.BSHD, 0));
        refused(
                "qkv: expected a multiple of 4 tokens, the length of a sequence, got FLOAT32[6, 24]",
                qkv,
                table,
                positions.padded(QkvFormat.BSHD, 4));
        refused(
                "qkv: expected a multiple of 5 tokens, the sequences of a batch, got FLOAT32[6, 24]",
                qkv,
                table,
                positions.padded(QkvFormat.SBHD, 5));
        refused(
                "qkv: expected memory of its own, got some of angles's; it is written to while that is read or written",
                qkv,
                new RotaryTable(open.scope().view(qkv, 0, 5, 6), Pairing.HALVES),
                packed(0, 6));
        assertThrown(
                IllegalArgumentException.class,
                "format: expected BSHD or SBHD, got THD; call packed(cuSeqlens)",
                () -> positions.padded(QkvFormat.THD, 1));
    }

    @Test
    void refusalsOfParts() {
        QkvHeads heads = new QkvHeads(2, 1, 6);
        Tensor qkv = of(DType.FLOAT32, 6, 24);
        Tensor q = of(DType.FLOAT32, 6, 12);
        Tensor k = of(DType.FLOAT32, 6, 6);
        Tensor v = of(DType.FLOAT32, 6, 6);
        TokenPositions positions = packed(0, 6);
        assertThrown(
                IllegalArgumentException.class,
                "q: expected 72 elements, 12 of each token, got FLOAT32[6, 6]",
                () -> Rotary.rotarySplit(qkv, heads, null, positions, k, k, v, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "v: expected elements of FLOAT32, got BFLOAT16[6, 6]",
                () -> Rotary.rotarySplit(qkv, heads, null, positions, q, k, of(DType.BFLOAT16, 6, 6), open.stream()));
        String shared =
                "k: expected memory of its own, got some of v's; it is written to while that is read or written";
        assertThrown(
                IllegalArgumentException.class,
                shared,
                () -> Rotary.rotarySplit(qkv, heads, null, positions, q, k, k, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "q: expected memory of its own, got some of qkv's; it is written to while that is read or written",
                () -> Rotary.rotaryJoin(
                        open.scope().view(qkv, 0, 6, 12), k, v, heads, null, positions, qkv, open.stream()));
    }

    @Test
    void refusalsOfHeads() {
        assertThrown(IllegalArgumentException.class, "heads: expected 1 to 65535, got 0", () -> new QkvHeads(0, 1, 8));
        assertThrown(
                IllegalArgumentException.class, "keyHeads: expected 0 to 65535, got -1", () -> new QkvHeads(1, -1, 8));
        assertThrown(
                IllegalArgumentException.class,
                "headDim: expected an even number from 2 to 8192, got 7",
                () -> new QkvHeads(1, 1, 7));
    }

    @Test
    void withoutTokens() {
        Tensor none = of(DType.FLOAT32, 0, 12);
        Rotary.rotaryPacked(none, ONE, table(5, 4), packed(0, 0), Direction.FORWARD, open.stream());
        Tensor part = of(DType.FLOAT32, 0, 4);
        Tensor other = of(DType.FLOAT32, 0, 4);
        Rotary.rotarySplit(none, ONE, null, packed(0, 0), part, other, of(DType.FLOAT32, 0, 4), open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        QkvHeads heads = new QkvHeads(2, 1, 16);
        Tensor qkv = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 6, 64, 1));
        Tensor q = of(DType.BFLOAT16, 6, 32);
        Tensor k = of(DType.BFLOAT16, 6, 16);
        Tensor v = of(DType.BFLOAT16, 6, 16);
        RotaryTable table = table(5, 16);
        Tensor cu = open.ints(0, 3, 6);
        TokenPositions positions = new TokenPositions();
        Allocation.assertNone("rotation", () -> {
            positions.packed(cu);
            Rotary.rotaryPacked(qkv, heads, table, positions, Direction.FORWARD, open.stream());
            Rotary.rotarySplit(qkv, heads, table, positions, q, k, v, open.stream());
            Rotary.rotaryJoin(q, k, v, heads, table, positions, qkv, open.stream());
        });
    }
}
