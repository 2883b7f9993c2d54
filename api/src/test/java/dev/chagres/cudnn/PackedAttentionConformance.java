package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.cudnn.AttentionBuilder.Diagonal;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Attention of sequences that lie one behind the other, forward and backward, against double precision. */
@Tag("L0")
@Tag("L1")
class PackedAttentionConformance {
    private static final int HEADS = 4;
    private static final int KEY_HEADS = 2;
    private static final int WIDTH = 64;
    private static final int QUERIES = 64;
    private static final int KEYS = 128;
    private static final int[] QUERY_LENGTHS = {64, 1, 37};
    private static final int[] KEY_LENGTHS = {90, 128, 37};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** What lies between the tokens of a sequence. */
    private enum Layout {
        /** [tokens, heads, D]. */
        THD,
        /** [tokens, 2, heads, D], of which every second half is left alone. */
        T2HD
    }

    private static final class Problem {
        final GraphWitness graph;
        final Layout layout;
        final AttentionModel model = new AttentionModel(3, HEADS, QUERIES, KEYS, WIDTH);
        final double[] q = drawn(HEADS, QUERIES);
        final double[] k = drawn(KEY_HEADS, KEYS);
        final double[] v = drawn(KEY_HEADS, KEYS);
        final double[] dy = drawn(HEADS, QUERIES);

        Problem(String name, Layout layout) {
            graph = new GraphWitness(open, name + " " + layout);
            this.layout = layout;
            model.keyHeads = KEY_HEADS;
            model.queryLengths = QUERY_LENGTHS;
            model.keyLengths = KEY_LENGTHS;
            model.bottomRight = true;
            model.after = 0;
            model.forward(q, k, v);
        }

        private static double[] drawn(int heads, int tokens) {
            return open.normal(DType.BFLOAT16, 3 * heads * tokens * WIDTH, 1);
        }

        private int step(int heads) {
            return (layout == Layout.THD ? 1 : 2) * heads * WIDTH;
        }

        /** Strides of [B, H, S, D]. */
        long[] strides(int heads, int tokens) {
            long step = step(heads);
            return new long[] {tokens * step, WIDTH, step, 1};
        }

        private GraphTensor offsets(String name, int heads, int... lengths) {
            return graph.offsets(name, step(heads), lengths);
        }

        private long room(int heads, int... lengths) {
            return (long) Arrays.stream(lengths).sum() * step(heads);
        }

        GraphTensor queries(String name, GraphTensor offsets, double... elements) {
            GraphTensor tensor = graph.builder.packed(
                    name,
                    DType.BFLOAT16,
                    new long[] {3, HEADS, QUERIES, WIDTH},
                    strides(HEADS, QUERIES),
                    offsets,
                    room(HEADS, QUERY_LENGTHS));
            return graph.input(graph.packed(tensor, offsets), elements);
        }

        GraphTensor keys(String name, GraphTensor offsets, double... elements) {
            GraphTensor tensor = graph.builder.packed(
                    name,
                    DType.BFLOAT16,
                    new long[] {3, KEY_HEADS, KEYS, WIDTH},
                    strides(KEY_HEADS, KEYS),
                    offsets,
                    room(KEY_HEADS, KEY_LENGTHS));
            return graph.input(graph.packed(tensor, offsets), elements);
        }

        /** The same memory as [B, H, D, S]. */
        GraphTensor turned(String name, GraphTensor offsets, double... elements) {
            long[] rows = strides(KEY_HEADS, KEYS);
            GraphTensor tensor = graph.builder.packed(
                    name,
                    DType.BFLOAT16,
                    new long[] {3, KEY_HEADS, WIDTH, KEYS},
                    new long[] {rows[0], rows[1], rows[3], rows[2]},
                    offsets,
                    room(KEY_HEADS, KEY_LENGTHS));
            double[] moved = new double[elements.length];
            for (int i = 0; i < moved.length; i++) {
                int inHead = i % (KEYS * WIDTH);
                moved[i] = elements[i - inHead + inHead % KEYS * WIDTH + inHead / KEYS];
            }
            return graph.input(graph.packed(tensor, offsets), moved);
        }

        private GraphTensor lengths(String name, int... lengths) {
            GraphTensor tensor = graph.builder.tensor(name, DType.INT32, 3, 1, 1, 1);
            return graph.input(tensor, Arrays.stream(lengths).asDoubleStream().toArray());
        }

        AttentionBuilder described(GraphTensor ofQueries, GraphTensor ofKeys) {
            return graph.builder
                    .attention("a", queries("q", ofQueries, q), turned("kT", ofKeys, k))
                    .scale(0.125f)
                    .causal(Diagonal.BOTTOM_RIGHT)
                    .lengths(lengths("lq", QUERY_LENGTHS), lengths("lkv", KEY_LENGTHS));
        }

        void output(GraphTensor result, int heads, GraphTensor offsets, double... expected) {
            int tokens = heads == HEADS ? QUERIES : KEYS;
            int[] lengths = heads == HEADS ? QUERY_LENGTHS : KEY_LENGTHS;
            graph.builder.packedOutput(
                    result, DataType.BFLOAT16, strides(heads, tokens), offsets, room(heads, lengths));
            graph.put(graph.packed(result, offsets), expected);
        }
    }

    @ParameterizedTest
    @EnumSource(Layout.class)
    void forward(Layout layout) {
        Problem p = new Problem("packed attention", layout);
        GraphTensor ofQueries = p.offsets("oq", HEADS, QUERY_LENGTHS);
        GraphTensor ofKeys = p.offsets("okv", KEY_HEADS, KEY_LENGTHS);
        SdpaForward result = p.described(ofQueries, ofKeys).forward(p.keys("v", ofKeys, p.v));
        p.output(result.o(), HEADS, ofQueries, p.model.o);
        // Statistics are packed too: [tokens, heads].
        GraphTensor rows = p.graph.offsets("os", HEADS, QUERY_LENGTHS);
        long[] strides = {(long) QUERIES * HEADS, 1, HEADS, 1};
        long room = (long) Arrays.stream(QUERY_LENGTHS).sum() * HEADS;
        p.graph.builder.packedOutput(result.stats(), DataType.FLOAT, strides, rows, room);
        double[] stats = p.model.stats.clone();
        for (int i = 0; i < stats.length; i++) {
            stats[i] = Double.isInfinite(stats[i]) ? 0 : stats[i];
        }
        p.graph.put(p.graph.packed(result.stats(), rows), stats);
        p.graph.check(1, Tolerances.attention(DType.BFLOAT16));
    }

    @ParameterizedTest
    @EnumSource(Layout.class)
    void backward(Layout layout) {
        Problem p = new Problem("gradients of packed attention", layout);
        p.model.backward(p.dy, p.q, p.k, p.v);
        GraphTensor ofQueries = p.offsets("oq", HEADS, QUERY_LENGTHS);
        GraphTensor ofKeys = p.offsets("okv", KEY_HEADS, KEY_LENGTHS);
        double[] stats = p.model.stats.clone();
        for (int i = 0; i < stats.length; i++) {
            stats[i] = Double.isInfinite(stats[i]) ? 0 : stats[i];
        }
        SdpaGradients gradients = p.described(ofQueries, ofKeys)
                .backward(
                        p.queries("dy", ofQueries, p.dy),
                        p.turned("vT", ofKeys, p.v),
                        p.queries("o", ofQueries, p.model.o),
                        p.graph.input("stats", DType.FLOAT32, stats, 3, HEADS, QUERIES, 1));
        p.output(gradients.dq(), HEADS, ofQueries, p.model.dq);
        p.output(gradients.dk(), KEY_HEADS, ofKeys, p.model.dk);
        p.output(gradients.dv(), KEY_HEADS, ofKeys, p.model.dv);
        // Results are read in BF16, and weights and gradients of scores are rounded to it before they are multiplied.
        p.graph.check(1, new Tolerance("gradients of packed attention BFLOAT16", 3e-2, 3e-1));
    }
}
