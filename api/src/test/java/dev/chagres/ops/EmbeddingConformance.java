package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Output;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Embedding} and {@code Rows}: rows are copied exactly, gradients are summed as double precision sums them. */
@Tag("L0")
@Tag("L1")
class EmbeddingConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int tokens, int vocabulary, int hidden) {}

    static List<Case> cases() {
        return List.of(
                new Case(DType.FLOAT32, 1, 1, 1),
                new Case(DType.FLOAT32, 1000, 33, 65),
                new Case(DType.BFLOAT16, 257, 64, 320),
                new Case(DType.BFLOAT16, 64, 5000, 7),
                new Case(DType.FLOAT16, 129, 3, 128));
    }

    /** Returns identifiers of which some lie outside the table. */
    private static int[] ids(Case c) {
        return open.random()
                .ints(c.tokens, -1, c.vocabulary + (c.tokens > 10 ? 1 : 0))
                .toArray();
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forward(Case c) {
        RealMatrix table = open.normal(c.dtype, c.vocabulary, c.hidden, 1);
        int[] ids = ids(c);
        Tensor y = open.unwritten(c.dtype, c.tokens, c.hidden);
        Embedding.forward(open.tensor(c.dtype, table), open.ints(ids), y, open.stream());
        float[] expected = new float[c.tokens * c.hidden];
        for (int i = 0; i < expected.length; i++) {
            int id = ids[i / c.hidden];
            boolean known = id >= 0 && id < c.vocabulary;
            expected[i] = known ? (float) table.getEntry(id, i % c.hidden) : 0;
        }
        assertArrayEquals(expected, open.read(y));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void backward(Case c) {
        RealMatrix dy = open.normal(c.dtype, c.tokens, c.hidden, 1);
        int[] ids = ids(c);
        RealMatrix before = open.normal(DType.FLOAT32, c.vocabulary, c.hidden, 1);
        RealMatrix sums = new BlockRealMatrix(c.vocabulary, c.hidden);
        for (int token = 0; token < c.tokens; token++) {
            for (int column = 0; column < c.hidden && ids[token] >= 0 && ids[token] < c.vocabulary; column++) {
                sums.addToEntry(ids[token], column, dy.getEntry(token, column));
            }
        }
        Tensor gradient = open.unwritten(DType.FLOAT32, c.vocabulary, c.hidden);
        Embedding.backward(open.tensor(c.dtype, dy), open.ints(ids), gradient, Output.OVERWRITE, open.stream());
        open.assertClose("gradient", sums, gradient, Tolerances.weightGradient(DType.BFLOAT16));
        Tensor added = open.tensor(DType.FLOAT32, before);
        Embedding.backward(open.tensor(c.dtype, dy), open.ints(ids), added, Output.ADD, open.stream());
        open.assertClose("added", before.add(sums), added, Tolerances.weightGradient(DType.BFLOAT16));
    }

    @Test
    void withoutTokensOrRows() {
        Tensor table = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 3, 4, 1));
        Tensor noIds = open.scope().tensor(DType.INT32, 0);
        Tensor none = open.scope().tensor(DType.FLOAT32, 0, 4);
        Embedding.forward(table, noIds, none, open.stream());
        Tensor gradient = open.unwritten(DType.FLOAT32, 3, 4);
        Embedding.backward(none, noIds, gradient, Output.OVERWRITE, open.stream());
        assertArrayEquals(new float[12], open.read(gradient));
        Tensor y = open.unwritten(DType.FLOAT32, 2, 4);
        Embedding.forward(none, open.ints(0, 1), y, open.stream());
        assertArrayEquals(new float[8], open.read(y), "no row of an empty table is known");
    }

    /** Rows of a table that begins in the middle of a vocabulary are those of the whole table, and so are their gradients. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void rowsOfAVocabulary(DType dtype) {
        RealMatrix whole = open.normal(dtype, 33, 7, 1);
        int[] ids = open.random().ints(100, -2, 36).toArray();
        RealMatrix dy = open.normal(dtype, ids.length, 7, 1);
        for (int[] part : new int[][] {{0, 33}, {5, 12}, {30, 33}, {33, 33}}) {
            Tensor rows = open.scope().view(open.tensor(dtype, whole), part[0] * 7L, part[1] - part[0], 7);
            Tensor y = open.unwritten(dtype, ids.length, 7);
            Embedding.forward(rows, part[0], open.ints(ids), y, open.stream());
            Tensor gradient = open.unwritten(DType.FLOAT32, part[1] - part[0], 7);
            Embedding.backward(
                    open.tensor(dtype, dy), part[0], open.ints(ids), gradient, Output.OVERWRITE, open.stream());
            float[] expected = new float[ids.length * 7];
            double[] sums = new double[(part[1] - part[0]) * 7];
            for (int i = 0; i < expected.length; i++) {
                int id = ids[i / 7];
                if (id >= part[0] && id < part[1]) {
                    expected[i] = (float) whole.getEntry(id, i % 7);
                    sums[(id - part[0]) * 7 + i % 7] += dy.getEntry(i / 7, i % 7);
                }
            }
            assertArrayEquals(expected, open.read(y));
            float[] actual = open.read(gradient);
            for (int i = 0; i < sums.length; i++) {
                assertEquals(sums[i], actual[i], 1e-4, "gradient " + i);
            }
        }
    }

    @Test
    void refusals() {
        Tensor table = open.scope().tensor(DType.FLOAT32, 3, 4);
        Tensor ids = open.ints(0, 1);
        Tensor y = open.scope().tensor(DType.FLOAT32, 2, 4);
        refused("ids: expected INT32[T], got INT64[2]", table, open.longs(0, 1), y);
        refused(
                "y: expected FLOAT32[T, 4], got FLOAT32[2, 3]",
                table,
                ids,
                open.scope().tensor(DType.FLOAT32, 2, 3));
        refused(
                "y: expected FLOAT32[2, 4], got FLOAT32[3, 4]",
                table,
                ids,
                open.scope().tensor(DType.FLOAT32, 3, 4));
        refused(
                "y: expected FLOAT32[T, 4], got BFLOAT16[2, 4]",
                table,
                ids,
                open.scope().tensor(DType.BFLOAT16, 2, 4));
        refused(
                "y: expected memory of its own, got some of table's; it is written to while that is read or written",
                table,
                ids,
                open.scope().view(table, 0, 2, 4));
        assertThrown(
                IllegalArgumentException.class,
                "gradient: expected FLOAT32[T, 4], got BFLOAT16[3, 4]",
                () -> Embedding.backward(y, ids, open.scope().tensor(DType.BFLOAT16, 3, 4), Output.ADD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "dy: expected FLOAT32[2, 4], got FLOAT32[3, 4]",
                () -> Embedding.backward(table, ids, table, Output.ADD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "first: expected at least 0, got -1",
                () -> Embedding.forward(table, -1, ids, y, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "first: expected at least 0, got -2",
                () -> Embedding.backward(y, -2, ids, table, Output.ADD, open.stream()));
    }

    private static void refused(String text, Tensor table, Tensor ids, Tensor y) {
        assertThrown(IllegalArgumentException.class, text, () -> Embedding.forward(table, ids, y, open.stream()));
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void gatherAndScatter(DType dtype) {
        RealMatrix x = open.normal(dtype, 50, 17, 1);
        int[] index = {49, 0, 7, -1, 50, 3};
        Tensor gathered = open.unwritten(dtype, 6, 17);
        Rows.gatherRows(open.tensor(dtype, x), open.ints(index), gathered, open.stream());
        float[] rows = open.read(gathered);
        RealMatrix target = open.normal(dtype, 50, 17, 1);
        Tensor scattered = open.tensor(dtype, target);
        Rows.scatterRows(gathered, open.ints(index), scattered, open.stream());
        float[] after = open.read(scattered);
        for (int i = 0; i < 6 * 17; i++) {
            boolean known = index[i / 17] >= 0 && index[i / 17] < 50;
            float value = known ? (float) x.getEntry(index[i / 17], i % 17) : 0;
            assertArrayEquals(new float[] {value}, new float[] {rows[i]}, "gathered element " + i);
            if (known) {
                target.setEntry(index[i / 17], i % 17, value);
            }
        }
        for (int i = 0; i < after.length; i++) {
            assertArrayEquals(
                    new float[] {(float) target.getEntry(i / 17, i % 17)},
                    new float[] {after[i]},
                    "scattered element " + i);
        }
    }

    @Test
    void integersAreRowsToo() {
        Tensor x = open.scope().view(open.ints(1, 2, 3, 4, 5, 6), 0, 3, 2);
        Tensor y = open.scope().tensor(DType.INT32, 2, 2);
        Rows.gatherRows(x, open.ints(2, 0), y, open.stream());
        assertArrayEquals(new int[] {5, 6, 1, 2}, y.toInts(open.stream()));
        Rows.scatterRows(y, open.ints(0, 1), x, open.stream());
        assertArrayEquals(new int[] {5, 6, 1, 2, 5, 6}, x.toInts(open.stream()));
        Rows.gatherRows(x, open.scope().tensor(DType.INT32, 0), open.scope().tensor(DType.INT32, 0, 2), open.stream());
    }

    @Test
    void refusedRows() {
        Tensor x = open.scope().tensor(DType.FLOAT32, 3, 4);
        Tensor y = open.scope().tensor(DType.FLOAT32, 2, 4);
        assertThrown(
                IllegalArgumentException.class,
                "x: expected a matrix, got FLOAT32[3]",
                () -> Rows.gatherRows(open.scope().tensor(DType.FLOAT32, 3), open.ints(0), y, open.stream()));
        for (DType other : new DType[] {DType.FLOAT8_E4M3, DType.BYTE, DType.INT64}) {
            Tensor rows = open.scope().tensor(other, 3, 2);
            String text = "x: expected elements of INT32, FLOAT32, FLOAT16 or BFLOAT16, got " + other + "[3, 2]";
            assertThrown(
                    IllegalArgumentException.class, text, () -> Rows.gatherRows(rows, open.ints(0), y, open.stream()));
            assertThrown(
                    IllegalArgumentException.class,
                    text,
                    () -> Rows.scatterRows(rows, open.ints(0, 1, 2), y, open.stream()));
        }
        assertThrown(
                IllegalArgumentException.class,
                "index: expected INT32[R], got INT64[2]",
                () -> Rows.gatherRows(x, open.longs(0, 1), y, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected FLOAT32[1, 4], got FLOAT32[2, 4]",
                () -> Rows.gatherRows(x, open.ints(0), y, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "x: expected FLOAT32[1, 4], got FLOAT32[3, 4]",
                () -> Rows.scatterRows(x, open.ints(0), y, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected memory of its own, got some of x's; it is written to while that is read or written",
                () -> Rows.scatterRows(x, open.ints(0, 1, 2), x, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor table = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        Tensor gradient = open.scope().tensor(DType.FLOAT32, 4, 8);
        Tensor ids = open.ints(0, 3);
        Tensor y = open.scope().tensor(DType.FLOAT32, 2, 8);
        Allocation.assertNone("rows", () -> {
            Embedding.forward(table, ids, y, open.stream());
            Embedding.backward(y, ids, gradient, Output.OVERWRITE, open.stream());
            Rows.gatherRows(table, ids, y, open.stream());
            Rows.scatterRows(y, ids, table, open.stream());
        });
    }
}
