package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.AttentionPlace.Diagonal;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.MaskType;
import dev.chagres.te.QkvLayout;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Calls that compute a part of a whole give what one call gives of the whole, whose numbers {@link AttentionConformance} compares with
 * double precision: a stretch of the queries of some heads over all keys.
 */
@Tag("L0")
@Tag("L1")
class AttentionPlaceConformance {
    private static final int HEADS = 5;
    private static final int HEAD_DIM = 16;
    private static final int WIDTH = HEADS * HEAD_DIM;
    /** Sequences of 9, 70 and 31 tokens. */
    private static final int[] ENDS = {0, 9, 79, 110};
    /** The part: tokens 42 to 88 of heads 2 and 3. */
    private static final int FIRST_TOKEN = 42;

    private static final int END_TOKEN = 88;
    private static final int FIRST_HEAD = 2;
    private static final int PART_HEADS = 2;
    private static final int PART_WIDTH = PART_HEADS * HEAD_DIM;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Tensors of a call, with inputs of these numbers. */
    private static AttentionTensors call(float[] q, float[] k, float[] v, float[] dO, int heads) {
        AttentionTensors tensors = new AttentionTensors()
                .query(tensor(q, heads))
                .key(tensor(k, heads))
                .value(tensor(v, heads))
                .outputGradient(tensor(dO, heads))
                .rngState(open.longs(77, 5));
        return tensors.output(open.scope().like(tensors.query()))
                .queryGradient(open.scope().like(tensors.query()))
                .keyGradient(open.scope().like(tensors.key()))
                .valueGradient(open.scope().like(tensors.key()))
                .statistics(open.unwritten(DType.FLOAT32, q.length / (heads * HEAD_DIM), heads, 1));
    }

    private static Tensor tensor(float[] values, int heads) {
        Tensor tensor = open.unwritten(DType.FLOAT32, values.length / (heads * HEAD_DIM), heads, HEAD_DIM);
        tensor.set(open.stream(), values);
        return tensor;
    }

    private static float[] drawn() {
        float[] values = new float[ENDS[3] * WIDTH];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) open.random().nextGaussian();
        }
        return values;
    }

    /** Returns some tokens of the part's heads. */
    private static float[] part(float[] whole, int first, int end) {
        float[] part = new float[(end - first) * PART_WIDTH];
        for (int t = first; t < end; t++) {
            System.arraycopy(whole, t * WIDTH + FIRST_HEAD * HEAD_DIM, part, (t - first) * PART_WIDTH, PART_WIDTH);
        }
        return part;
    }

    private static void run(AttentionProblem problem, AttentionTensors tensors, AttentionPlace place) {
        AttentionScores scores = new AttentionScores();
        Attention.forward(problem, tensors, scores, place, open.stream());
        Attention.backward(problem, tensors, scores, place, open.scope().like(tensors.statistics()), open.stream());
    }

    @ParameterizedTest
    @CsvSource({"PADDING, -1, -1", "PADDING_CAUSAL, -1, 0", "PADDING_CAUSAL, 7, 0", "PADDING, 3, 11"})
    void aPartGivesWhatTheWholeGives(MaskType mask, long left, long right) {
        AttentionProblem problem = AttentionProblem.of(QkvLayout.THD_THD_THD, 0.25f)
                .withMask(mask)
                .withWindow(left, right)
                .withDropout(0.3f);
        float[][] in = {drawn(), drawn(), drawn(), drawn()};
        for (int i = 0; i < in[3].length; i++) { // Other queries give keys no gradient.
            int token = i / WIDTH;
            in[3][i] = token < FIRST_TOKEN || token >= END_TOKEN ? 0 : in[3][i];
        }
        AttentionTensors whole = call(in[0], in[1], in[2], in[3], HEADS);
        whole.queryLengths(open.ints(ENDS), 70).keyLengths(open.ints(ENDS), 70);
        run(problem, whole, new AttentionPlace());

        AttentionTensors part = call(
                part(in[0], FIRST_TOKEN, END_TOKEN),
                part(in[1], ENDS[1], ENDS[3]),
                part(in[2], ENDS[1], ENDS[3]),
                part(in[3], FIRST_TOKEN, END_TOKEN),
                PART_HEADS);
        // Sequences 1 and 2 alone, of which the first one begins before the part.
        part.queryLengths(open.ints(0, ENDS[2] - FIRST_TOKEN, END_TOKEN - FIRST_TOKEN), 37)
                .keyLengths(open.ints(0, 70, 101), 70);
        run(
                problem,
                part,
                new AttentionPlace()
                        .heads(HEADS, FIRST_HEAD)
                        .sequences(open.ints(1, 2))
                        .firstQueries(open.ints(FIRST_TOKEN - ENDS[1], 0))
                        .firstKeys(open.ints(0, 0))
                        .diagonal(Diagonal.BY_PLACE));

        close(whole.output(), part.output(), FIRST_TOKEN, END_TOKEN);
        close(whole.queryGradient(), part.queryGradient(), FIRST_TOKEN, END_TOKEN);
        close(whole.keyGradient(), part.keyGradient(), ENDS[1], ENDS[3]);
        close(whole.valueGradient(), part.valueGradient(), ENDS[1], ENDS[3]);
    }

    private static void close(Tensor whole, Tensor part, int first, int end) {
        assertArrayEquals(part(open.read(whole), first, end), open.read(part), 2e-5f);
    }

    private static void refused(String text, AttentionPlace place) {
        float[] values = new float[ENDS[3] * WIDTH];
        AttentionTensors tensors = call(values, values, values, values, HEADS);
        tensors.queryLengths(open.ints(ENDS), 70).keyLengths(open.ints(ENDS), 70);
        AttentionProblem problem =
                AttentionProblem.of(QkvLayout.THD_THD_THD, 0.25f).withMask(MaskType.PADDING);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Attention.forward(problem, tensors, new AttentionScores(), place, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Attention.backward(
                        problem,
                        tensors,
                        new AttentionScores(),
                        place,
                        open.scope().like(tensors.statistics()),
                        open.stream()));
    }

    @Test
    void refusals() {
        String heads = "heads: expected the query's 5 to be some of those of the whole, got ";
        refused(heads + "0 from 1 on", new AttentionPlace().heads(0, 1));
        refused(heads + "4 from 0 on", new AttentionPlace().heads(4, 0));
        refused(heads + "9 from 5 on", new AttentionPlace().heads(9, 5));
        refused(heads + "9 from -1 on", new AttentionPlace().heads(9, -1));
        refused(heads + Long.MIN_VALUE + " from 0 on", new AttentionPlace().heads(Long.MIN_VALUE, 0));
        refused("sequences: expected INT32[3], got INT32[2]", new AttentionPlace().sequences(open.ints(0, 1)));
        refused(
                "firstQueries: expected INT32[3], got FLOAT32[3]",
                new AttentionPlace().firstQueries(open.unwritten(DType.FLOAT32, 3)));
        refused("firstKeys: expected INT32[3], got INT32[4]", new AttentionPlace().firstKeys(open.ints(0, 1, 2, 3)));
    }
}
