package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.ContextParallelCorrection.Extent;
import dev.chagres.te.ContextParallelCorrection.LseLayout;
import dev.chagres.te.ContextParallelCorrection.Update;
import dev.chagres.te.ContextParallelThd.Half;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Packed tokens of context-parallel ranks: every element against plain loops, those that no sequence owns included. */
@Tag("L0")
@Tag("L1")
class ContextParallelConformance {
    /** Where sequences of 8, 0, 4 and 300 tokens begin and end; two tokens stand behind them. */
    private static final int[] STARTS = {0, 8, 8, 12, 312};

    private static final int TOKENS = 314;
    private static final int LONGEST = 302;
    private static final int HEADS = 3;
    private static final int DIM = 16;
    private static final int WIDTH = HEADS * DIM;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Token {@code token} is number {@code index} of its sequence, and number {@code ofHalves} of all such halves. */
    private record Place(int sequence, int index, int token, int ofHalves, int half) {
        boolean isSecond() {
            return index >= half;
        }
    }

    private static List<Place> places() {
        List<Place> places = new ArrayList<>();
        for (int b = 0; b + 1 < STARTS.length; b++) {
            int half = (STARTS[b + 1] - STARTS[b]) / 2;
            for (int i = 0; i < 2 * half; i++) {
                places.add(new Place(b, i, STARTS[b] + i, STARTS[b] / 2 + i % half, half));
            }
        }
        return places;
    }

    private static Tensor offsets() {
        return open.ints(STARTS);
    }

    private static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    private static double[] numbers(int count) {
        return open.normal(DType.BFLOAT16, count, 1);
    }

    @ParameterizedTest
    @EnumSource(Half.class)
    void halves(Half which) {
        double[] values = numbers(2 * TOKENS * WIDTH);
        double[] expected = numbers(TOKENS * WIDTH);
        Tensor pair = open.tensor(DType.BFLOAT16, values, 2, TOKENS, HEADS, DIM);
        Tensor half = open.tensor(DType.BFLOAT16, expected, 2, TOKENS / 2, HEADS, DIM);
        ContextParallelThd.readHalfTensor(pair, offsets(), half, which, open.stream());
        for (Place place : places()) {
            if (place.isSecond() == (which == Half.SECOND)) {
                for (int part = 0; part < 2; part++) {
                    System.arraycopy(
                            values,
                            (part * TOKENS + place.token) * WIDTH,
                            expected,
                            (part * TOKENS / 2 + place.ofHalves) * WIDTH,
                            WIDTH);
                }
            }
        }
        assertArrayEquals(floats(expected), open.read(half));
    }

    private static int lse(LseLayout layout, int head, Place place, int index, int token, int columns) {
        return layout == LseLayout.PACKED ? head * columns + token : (place.sequence * HEADS + head) * columns + index;
    }

    private static Tensor lse(LseLayout layout, double[] values, int columns) {
        return layout == LseLayout.PACKED
                ? open.tensor(DType.FLOAT32, values, HEADS, columns)
                : open.tensor(DType.FLOAT32, values, STARTS.length - 1, HEADS, columns);
    }

    private static int rows(LseLayout layout) {
        return layout == LseLayout.PACKED ? HEADS : HEADS * (STARTS.length - 1);
    }

    @ParameterizedTest
    @EnumSource(LseLayout.class)
    void lseOfSecondHalves(LseLayout layout) {
        boolean packed = layout == LseLayout.PACKED;
        int columns = packed ? TOKENS : LONGEST;
        int halfColumns = packed ? TOKENS / 2 + 3 : LONGEST / 2;
        double[] whole = numbers(rows(layout) * columns);
        double[] step = numbers(rows(layout) * halfColumns);
        double[] expectedHalf = numbers(rows(layout) * halfColumns);
        double[] expected = whole.clone();
        Tensor lse = lse(layout, whole, columns);
        Tensor half = lse(layout, expectedHalf, halfColumns);
        for (Place place : places()) {
            for (int head = 0; place.isSecond() && head < HEADS; head++) {
                int at = lse(layout, head, place, place.index, place.token, columns);
                int from = lse(layout, head, place, place.index - place.half, place.ofHalves, halfColumns);
                expectedHalf[from] = whole[at];
                expected[at] = Math.log(Math.exp(whole[at]) + Math.exp(step[from]));
            }
        }
        new ContextParallelCorrection(lse, offsets(), layout).readSecondHalfLse(half, open.stream());
        assertArrayEquals(floats(expectedHalf), open.read(half));
        new ContextParallelCorrection(lse, offsets(), layout)
                .secondHalfLseCorrection(lse(layout, step, halfColumns), open.stream());
        open.assertClose("lse", expected, lse, Tolerances.rounded(DType.FLOAT32));
    }

    @ParameterizedTest
    @CsvSource({
        "FLOAT32, WHOLE_SEQUENCES, PACKED",
        "FLOAT32, SECOND_HALVES, PADDED",
        "BFLOAT16, SECOND_HALVES, PACKED",
        "FLOAT16, WHOLE_SEQUENCES, PADDED"
    })
    void outputs(DType dtype, Extent extent, LseLayout layout) {
        int divisor = extent == Extent.SECOND_HALVES ? 2 : 1;
        int columns = layout == LseLayout.PACKED ? TOKENS + 2 : LONGEST;
        double[] out = numbers(TOKENS * WIDTH);
        double[] step = numbers(TOKENS / divisor * WIDTH);
        double[] old = numbers(rows(layout) * columns);
        double[] now = numbers(rows(layout) * columns);
        double[] stepLse = numbers(rows(layout) * (columns / divisor));
        double[] expected = out.clone();
        for (Place place : places()) {
            if (divisor == 2 && !place.isSecond()) {
                continue;
            }
            int token = divisor == 2 ? place.ofHalves : place.token;
            int index = divisor == 2 ? place.index - place.half : place.index;
            for (int i = 0; i < WIDTH; i++) {
                int at = lse(layout, i / DIM, place, place.index, place.token, columns);
                int from = lse(layout, i / DIM, place, index, token, columns / divisor);
                expected[place.token * WIDTH + i] = out[place.token * WIDTH + i] * Math.exp(old[at] - now[at])
                        + step[token * WIDTH + i] * Math.exp(stepLse[from] - now[at]);
            }
        }
        Tensor result = open.tensor(dtype, out, TOKENS, HEADS, DIM);
        new ContextParallelCorrection(lse(layout, now, columns), offsets(), layout)
                .outCorrection(
                        result,
                        open.tensor(dtype, step, TOKENS / divisor, HEADS, DIM),
                        lse(layout, old, columns),
                        lse(layout, stepLse, columns / divisor),
                        extent,
                        open.stream());
        open.assertClose("out", expected, result, ofTerms(dtype));
    }

    /** TE may round each of two terms, then their sum, and terms of tens may cancel. */
    private static Tolerance ofTerms(DType dtype) {
        Tolerance once = Tolerances.rounded(dtype);
        return new Tolerance("sum of two terms, " + dtype, 3 * once.frobenius(), 10 * once.element());
    }

    @ParameterizedTest
    @CsvSource({
        "ADD, NONE",
        "NONE, ADD",
        "COPY, NONE",
        "NONE, COPY",
        "COPY, ZERO",
        "ZERO, COPY",
        "ADD, COPY",
        "COPY, ADD"
    })
    void gradients(Update first, Update second) {
        boolean both = (first == Update.ADD && second == Update.COPY) || (first == Update.COPY && second == Update.ADD);
        int stepTokens = both ? TOKENS : TOKENS / 2;
        double[] values = numbers(2 * TOKENS * WIDTH);
        double[] step = numbers(2 * stepTokens * WIDTH);
        double[] expected = values.clone();
        for (Place place : places()) {
            Update update = place.isSecond() ? second : first;
            int token = both ? place.token : place.ofHalves;
            for (int i = 0; i < 2 * WIDTH; i++) {
                int at = (i / WIDTH * TOKENS + place.token) * WIDTH + i % WIDTH;
                double term = step[(i / WIDTH * stepTokens + token) * WIDTH + i % WIDTH];
                expected[at] = switch (update) {
                    case NONE -> values[at];
                    case ADD -> values[at] + term;
                    case COPY -> term;
                    case ZERO -> 0;
                };
            }
        }
        Tensor grad = open.tensor(DType.FLOAT32, values, 2, TOKENS, HEADS, DIM);
        Tensor perStep = open.tensor(DType.FLOAT32, step, 2, stepTokens, HEADS, DIM);
        ContextParallelCorrection.gradCorrection(grad, perStep, offsets(), first, second, open.stream());
        assertArrayEquals(floats(expected), open.read(grad));
    }

    /** Chunks r and 2n - 1 - r of each sequence, for each rank r of n. */
    private static int[] order(int worldSize) {
        int[] order = new int[STARTS[STARTS.length - 1]];
        int at = 0;
        for (int rank = 0; rank < worldSize; rank++) {
            for (int b = 0; b + 1 < STARTS.length; b++) {
                int chunk = (STARTS[b + 1] - STARTS[b]) / (2 * worldSize);
                for (int number : new int[] {rank, 2 * worldSize - 1 - rank}) {
                    for (int i = 0; i < chunk; i++) {
                        order[at++] = STARTS[b] + number * chunk + i;
                    }
                }
            }
        }
        return order;
    }

    @ParameterizedTest
    @CsvSource({"1", "2"})
    void orders(int worldSize) {
        int[] order = order(worldSize);
        double[] values = numbers(order.length * DIM);
        double[] expected = new double[values.length];
        for (int i = 0; i < order.length; i++) {
            System.arraycopy(values, order[i] * DIM, expected, i * DIM, DIM);
        }
        Tensor x = open.tensor(DType.FLOAT16, values, order.length, DIM);
        Tensor ranked = open.unwritten(DType.FLOAT16, order.length, DIM);
        Tensor back = open.unwritten(DType.FLOAT16, order.length, DIM);
        ContextParallelThd.sequenceOrderToCpRankOrder(x, offsets(), ranked, worldSize, open.stream());
        assertArrayEquals(floats(expected), open.read(ranked));
        ContextParallelThd.cpRankOrderToSequenceOrder(ranked, offsets(), back, worldSize, open.stream());
        assertArrayEquals(floats(values), open.read(back));
        int each = order.length / worldSize;
        Tensor indices = open.ints(new int[each]);
        for (int rank = 0; rank < worldSize; rank++) {
            ContextParallelThd.getPartitionedIndices(offsets(), indices, worldSize, rank, open.stream());
            int[] wanted = new int[each];
            System.arraycopy(order, rank * each, wanted, 0, each);
            assertArrayEquals(wanted, indices.toInts(open.stream()));
        }
    }

    @Test
    void validTokens() {
        double[] values = numbers(12 * DIM);
        double[] expected = numbers(12 * DIM);
        Tensor x = open.tensor(DType.BFLOAT16, values, 12, DIM);
        Tensor y = open.tensor(DType.BFLOAT16, expected, 12, DIM);
        ContextParallelThd.copyValidTokensFromPerSplitToRankLocal(
                x, open.ints(2, 6, 6, 12), open.ints(0, 3, 3, 5), y, open.stream());
        System.arraycopy(values, 2 * DIM, expected, 2 * DIM, 3 * DIM);
        System.arraycopy(values, 6 * DIM, expected, 6 * DIM, 2 * DIM);
        assertArrayEquals(floats(expected), open.read(y));
    }

    @Test
    void nothing() {
        Tensor tokens = open.unwritten(DType.FLOAT32, 0, HEADS, DIM);
        Tensor same = open.unwritten(DType.FLOAT32, 0, HEADS, DIM);
        Tensor lse = open.unwritten(DType.FLOAT32, HEADS, 0);
        Tensor lengths = open.ints(0, 0);
        ContextParallelThd.readHalfTensor(tokens, lengths, same, Half.FIRST, open.stream());
        ContextParallelThd.sequenceOrderToCpRankOrder(tokens, lengths, same, 2, open.stream());
        ContextParallelThd.cpRankOrderToSequenceOrder(tokens, lengths, same, 2, open.stream());
        ContextParallelThd.copyValidTokensFromPerSplitToRankLocal(tokens, lengths, lengths, same, open.stream());
        ContextParallelThd.getPartitionedIndices(lengths, open.ints(), 2, 0, open.stream());
        new ContextParallelCorrection(lse, lengths, LseLayout.PACKED).secondHalfLseCorrection(lse, open.stream());
        new ContextParallelCorrection(lse, lengths, LseLayout.PACKED).readSecondHalfLse(lse, open.stream());
        new ContextParallelCorrection(lse, lengths, LseLayout.PACKED)
                .outCorrection(tokens, same, lse, lse, Extent.SECOND_HALVES, open.stream());
        ContextParallelCorrection.gradCorrection(tokens, same, lengths, Update.COPY, Update.ADD, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor out = open.tensor(DType.FLOAT32, numbers(8 * WIDTH), 8, HEADS, DIM);
        Tensor half = open.tensor(DType.FLOAT32, numbers(4 * WIDTH), 4, HEADS, DIM);
        Tensor lse = open.tensor(DType.FLOAT32, numbers(8 * HEADS), HEADS, 8);
        Tensor step = open.tensor(DType.FLOAT32, numbers(4 * HEADS), HEADS, 4);
        Tensor lengths = open.ints(0, 4, 8);
        ContextParallelCorrection correction = new ContextParallelCorrection(lse, lengths, LseLayout.PACKED);
        Allocation.assertNone("merging", () -> {
            ContextParallelThd.readHalfTensor(out, lengths, half, Half.SECOND, open.stream());
            correction.secondHalfLseCorrection(step, open.stream());
            correction.outCorrection(out, half, lse, step, Extent.SECOND_HALVES, open.stream());
            ContextParallelCorrection.gradCorrection(out, half, lengths, Update.ADD, Update.NONE, open.stream());
        });
    }
}
