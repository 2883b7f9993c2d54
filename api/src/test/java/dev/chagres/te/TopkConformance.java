package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Topk} against sorting. */
@Tag("L0")
@Tag("L1")
class TopkConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int rows, int columns, int k) {}

    static List<Case> cases() {
        return List.of(
                new Case(DType.FLOAT32, 1, 1, 1),
                new Case(DType.FLOAT32, 3, 7, 9),
                new Case(DType.FLOAT32, 5, 1025, 64),
                new Case(DType.FLOAT32, 2, 32_768, 50),
                new Case(DType.FLOAT32, 3, 50_257, 40),
                new Case(DType.BFLOAT16, 4, 31, 1),
                new Case(DType.BFLOAT16, 3, 2047, 100),
                new Case(DType.BFLOAT16, 1, 32_767, 2048));
    }

    /** What one call reads and writes. */
    private static final class Call {
        private final int k;
        private final Tensor keys;
        private final Tensor lengths;
        private final Tensor found;
        private final Tensor indices;

        Call(DType dtype, int rows, int columns, int k) {
            this.k = k;
            keys = open.tensor(dtype, open.normal(dtype, rows * columns, 1), rows, columns);
            int[] whole = new int[rows];
            Arrays.fill(whole, columns);
            lengths = open.ints(whole);
            found = open.unwritten(dtype, rows, k);
            indices = open.scope().tensor(DType.INT32, rows, k);
        }

        void run() {
            Topk.topk(keys, lengths, found, indices, open.stream());
        }

        void check() {
            float[] given = open.read(keys);
            int[] counts = lengths.toInts(open.stream());
            float[] values = open.read(found);
            int[] places = indices.toInts(open.stream());
            int columns = given.length / counts.length;
            for (int row = 0; row < counts.length; row++) {
                float[] sorted = Arrays.copyOfRange(given, row * columns, row * columns + counts[row]);
                Arrays.sort(sorted);
                int present = Math.min(counts[row], k);
                float[] expected = Arrays.copyOfRange(sorted, counts[row] - present, counts[row]);
                float[] actual = Arrays.copyOfRange(values, row * k, row * k + present);
                for (int i = 0; i < k; i++) {
                    int place = places[row * k + i];
                    assertEquals(i < present ? given[row * columns + place] : -1, values[row * k + i], "key " + i);
                    assertEquals(i < present, place >= 0 && place < counts[row], "place " + i + " of row " + row);
                }
                Arrays.sort(actual);
                assertArrayEquals(expected, actual, "row " + row);
                int[] own = Arrays.copyOfRange(places, row * k, row * k + present);
                assertEquals(present, Arrays.stream(own).distinct().count(), "places of row " + row);
            }
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void largestOfRows(Case c) {
        Call call = new Call(c.dtype, c.rows, c.columns, c.k);
        call.run();
        call.check();
    }

    @Test
    void rowsOfOtherLengths() {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            Call call = new Call(dtype, 5, 300, 10);
            call.lengths.set(open.stream(), 300, 150, 10, 3, 0);
            call.run();
            call.check();
        }
    }

    @Test
    void equalKeys() {
        Call call = new Call(DType.BFLOAT16, 2, 500, 20);
        double[] keys = new double[1000];
        Arrays.fill(keys, 2);
        keys[100] = 3;
        open.set(call.keys, keys);
        call.run();
        call.check();
    }

    @Test
    void bitsDecide() {
        float[] ascending = {
            Float.intBitsToFloat(0xffc00000),
            Float.NEGATIVE_INFINITY,
            -1,
            -0f,
            0f,
            1e-40f,
            1,
            Float.POSITIVE_INFINITY,
            Float.NaN
        };
        for (int k = 1; k < ascending.length; k++) {
            Call call = new Call(DType.FLOAT32, 1, ascending.length, k);
            call.keys.set(open.stream(), ascending);
            call.run();
            int[] places = call.indices.toInts(open.stream());
            Arrays.sort(places);
            for (int i = 0; i < k; i++) {
                assertEquals(ascending.length - k + i, places[i], k + " largest");
            }
        }
    }

    /** The workspace that TE wants is remembered: shapes in turn, and one again after a larger one, must not disturb it. */
    @Test
    void shapesInTurnAndNoGarbage() {
        for (int columns : new int[] {64, 5000, 64}) {
            Call call = new Call(DType.FLOAT32, 3, columns, 5);
            call.run();
            call.check();
            Allocation.assertNone("topk", call::run);
        }
        Topk.topk(
                of(DType.FLOAT32, 0, 8),
                of(DType.INT32, 0),
                of(DType.FLOAT32, 0, 2),
                of(DType.INT32, 0, 2),
                open.stream());
    }

    @Test
    void inAGraph() {
        Call call = new Call(DType.FLOAT32, 2, 100, 3);
        call.run();
        try (Graph graph = open.stream().capture(call::run)) {
            open.set(call.keys, open.normal(DType.FLOAT32, 200, 1));
            graph.launch();
            call.check();
        }
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(String text, Tensor keys, Tensor lengths, Tensor found, Tensor indices) {
        assertThrown(
                IllegalArgumentException.class, text, () -> Topk.topk(keys, lengths, found, indices, open.stream()));
    }

    @Test
    void refusals() {
        Tensor keys = of(DType.FLOAT32, 2, 8);
        Tensor lengths = open.ints(8, 8);
        Tensor found = of(DType.FLOAT32, 2, 3);
        Tensor indices = of(DType.INT32, 2, 3);
        refused(
                "keysIn: expected a matrix of FLOAT32 or BFLOAT16, got FLOAT16[2, 8]",
                of(DType.FLOAT16, 2, 8),
                lengths,
                found,
                indices);
        refused(
                "keysIn: expected at most 16777216 rows of 1 to 268435456 keys, got FLOAT32[2, 0]",
                of(DType.FLOAT32, 2, 0),
                lengths,
                found,
                indices);
        refused(
                "keysIn: expected FLOAT32 in rows of more than 32768 keys, for which TE can ask too little memory for BFLOAT16, got"
                        + " BFLOAT16[2, 32769]",
                of(DType.BFLOAT16, 2, 32_769),
                lengths,
                found,
                indices);
        refused("lengths: expected INT32[2], got INT32[3]", keys, open.ints(1, 2, 3), found, indices);
        refused(
                "keysOut: expected FLOAT32[2, k] with k from 1 on, got FLOAT32[3, 2]",
                keys,
                lengths,
                of(DType.FLOAT32, 3, 2),
                indices);
        refused("indicesOut: expected INT32[2, 3], got INT32[2, 4]", keys, lengths, found, of(DType.INT32, 2, 4));
        refused("indicesOut: expected INT32[2, 3], got INT64[2, 3]", keys, lengths, found, of(DType.INT64, 2, 3));
        refused(
                "keysOut: expected memory of its own, got some of keysIn's; it is written to while that is read or written",
                keys,
                lengths,
                open.scope().view(keys, 0, 2, 3),
                indices);
    }
}
