package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.cudnn.AttentionBuilder.Diagonal;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Attention as operations that cuDNN fuses and as one operation, forward and backward, against double precision. */
@Tag("L0")
@Tag("L1")
class AttentionGraphConformance {
    private static final int BATCH = 2;
    private static final int HEADS = 2;
    private static final int WIDTH = 64;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** What an attention has besides a scale. */
    private enum Part {
        CAUSAL,
        BOTTOM_RIGHT,
        WINDOW,
        BIAS,
        SLOPES,
        SINK,
        LENGTHS,
        DROPOUT,
        CAPPED,
        /** No statistics. */
        RESULTS_ALONE,
        BIAS_GRADIENT,
        /** Four heads of queries, two of keys. */
        GROUPED,
        /** One head of keys. */
        SHARED
    }

    private record Case(DType dtype, int queries, int keys, Set<Part> parts) {
        static Case of(DType dtype, int queries, int keys, Part... parts) {
            Set<Part> all = EnumSet.noneOf(Part.class);
            all.addAll(Arrays.asList(parts));
            return new Case(dtype, queries, keys, all);
        }

        boolean has(Part part) {
            return parts.contains(part);
        }

        int heads() {
            return has(Part.GROUPED) ? 4 : HEADS;
        }

        int keyHeads() {
            return has(Part.SHARED) ? 1 : HEADS;
        }

        Diagonal diagonal() {
            return has(Part.BOTTOM_RIGHT) ? Diagonal.BOTTOM_RIGHT : Diagonal.TOP_LEFT;
        }
    }

    static Stream<Case> cases() {
        return Stream.of(
                Case.of(DType.BFLOAT16, 64, 64),
                Case.of(DType.FLOAT16, 64, 128),
                Case.of(DType.FLOAT32, 3, 5),
                Case.of(DType.BFLOAT16, 64, 64, Part.RESULTS_ALONE),
                Case.of(DType.BFLOAT16, 64, 64, Part.CAUSAL),
                Case.of(DType.BFLOAT16, 64, 64, Part.CAUSAL, Part.RESULTS_ALONE),
                Case.of(DType.FLOAT16, 64, 128, Part.CAUSAL, Part.BOTTOM_RIGHT),
                Case.of(DType.BFLOAT16, 64, 64, Part.CAUSAL, Part.WINDOW),
                Case.of(DType.BFLOAT16, 64, 128, Part.WINDOW, Part.BOTTOM_RIGHT),
                Case.of(DType.BFLOAT16, 64, 64, Part.BIAS),
                Case.of(DType.BFLOAT16, 64, 64, Part.CAUSAL, Part.SLOPES),
                Case.of(DType.BFLOAT16, 64, 64, Part.SINK),
                Case.of(DType.FLOAT16, 64, 128, Part.LENGTHS),
                Case.of(DType.FLOAT16, 64, 128, Part.LENGTHS, Part.CAUSAL, Part.BOTTOM_RIGHT, Part.WINDOW),
                Case.of(DType.BFLOAT16, 64, 64, Part.DROPOUT, Part.CAUSAL),
                Case.of(DType.BFLOAT16, 64, 64, Part.CAPPED),
                Case.of(DType.BFLOAT16, 64, 128, Part.GROUPED, Part.CAUSAL),
                Case.of(DType.FLOAT16, 64, 64, Part.SHARED, Part.LENGTHS),
                Case.of(DType.BFLOAT16, 64, 64, Part.BIAS, Part.BIAS_GRADIENT),
                Case.of(DType.FLOAT32, 5, 7, Part.GROUPED, Part.BIAS, Part.BIAS_GRADIENT, Part.SINK, Part.CAPPED),
                Case.of(DType.FLOAT32, 7, 9, Part.CAPPED, Part.BIAS, Part.SLOPES, Part.SINK, Part.WINDOW));
    }

    /** Queries, keys, values and the gradient of results, and what is computed of them. */
    private static final class Problem {
        final Case c;
        final AttentionModel model;
        final double[] q;
        final double[] k;
        final double[] v;
        final double[] dy;

        Problem(Case c) {
            this.c = c;
            model = new AttentionModel(BATCH, c.heads(), c.queries, c.keys, WIDTH);
            model.keyHeads = c.keyHeads();
            q = drawn(c.heads() * c.queries);
            k = drawn(c.keyHeads() * c.keys);
            v = drawn(c.keyHeads() * c.keys);
            dy = drawn(c.heads() * c.queries);
            model.after = c.has(Part.CAUSAL) ? 0 : c.has(Part.WINDOW) ? 5 : Long.MAX_VALUE;
            model.before = c.has(Part.WINDOW) ? 3 : Long.MAX_VALUE;
            model.bottomRight = c.has(Part.BOTTOM_RIGHT);
            model.bias = c.has(Part.BIAS) ? open.normal(c.dtype, c.queries * c.keys, 1) : null;
            model.slopes = c.has(Part.SLOPES) ? new double[] {0.5, 0.25} : null;
            model.sink = c.has(Part.SINK) ? Arrays.copyOf(new double[] {1.5, -0.5, 0.25, 0}, c.heads()) : null;
            model.queryLengths = c.has(Part.LENGTHS) ? new int[] {c.queries, c.queries - 13} : null;
            model.keyLengths = c.has(Part.LENGTHS) ? new int[] {c.keys - 5, c.keys} : null;
            if (c.has(Part.CAPPED)) {
                model.change = x -> 2 * Math.tanh(x / 2);
                model.changed = x -> 1 - Math.tanh(x / 2) * Math.tanh(x / 2);
            }
        }

        private double[] drawn(int rows) {
            return open.normal(c.dtype, BATCH * rows * WIDTH, 1);
        }

        GraphTensor rows(GraphWitness graph, String name, int tokens, double... elements) {
            int heads = elements.length / (BATCH * tokens * WIDTH);
            return graph.input(name, c.dtype, elements, BATCH, heads, tokens, WIDTH);
        }

        GraphTensor sink(GraphWitness graph) {
            return graph.input("sink", DType.FLOAT32, model.sink, 1, c.heads(), 1, 1);
        }

        /** The same memory as [B, H, D, S]. */
        GraphTensor turned(GraphWitness graph, String name, double... elements) {
            long head = (long) c.keys * WIDTH;
            int heads = c.keyHeads();
            GraphTensor tensor = graph.builder.tensor(
                    name, c.dtype, new long[] {BATCH, heads, WIDTH, c.keys}, new long[] {heads * head, head, 1, WIDTH});
            double[] moved = new double[elements.length];
            for (int i = 0; i < moved.length; i++) {
                int inHead = i % (int) head;
                moved[i] = elements[i - inHead + inHead % c.keys * WIDTH + inHead / c.keys];
            }
            return graph.input(tensor, moved);
        }

        AttentionBuilder described(GraphWitness graph) {
            AttentionBuilder attention = graph.builder
                    .attention("a", rows(graph, "q", c.queries, q), turned(graph, "kT", k))
                    .scale(0.125f)
                    .window(model.before, model.after, c.diagonal());
            if (model.bias != null) {
                attention.bias(graph.input("bias", c.dtype, model.bias, 1, 1, c.queries, c.keys));
            }
            if (model.slopes != null) {
                attention.slopes(graph.input("slopes", DType.FLOAT32, model.slopes, 1, HEADS, 1, 1));
            }
            if (model.queryLengths != null) {
                attention.lengths(lengths(graph, "lq", model.queryLengths), lengths(graph, "lkv", model.keyLengths));
            }
            if (c.has(Part.DROPOUT)) {
                GraphTensor seed = graph.input(graph.builder.tensor("seed", DType.INT64, 1, 1, 1, 1), 7);
                attention.dropout(0.25f, seed, graph.input(graph.builder.tensor("offset", DType.INT64, 1, 1, 1, 1), 3));
            }
            if (c.has(Part.CAPPED)) {
                capped(graph, attention);
            }
            return attention;
        }

        /** 2 tanh(x / 2) of scores. */
        private static void capped(GraphWitness graph, AttentionBuilder attention) {
            GraphBuilder builder = graph.builder;
            GraphTensor two = builder.scalar("two", 4, 2);
            GraphTensor[] halves = new GraphTensor[1];
            attention.scores(
                    x -> {
                        halves[0] = builder.pointwise("halves", PointwiseMode.DIV, x, two);
                        GraphTensor tanh = builder.pointwise("tanh", PointwiseMode.TANH_FWD, halves[0]);
                        return builder.pointwise("capped", PointwiseMode.MUL, tanh, two);
                    },
                    dx -> builder.pointwise("dcapped", PointwiseMode.TANH_BWD, dx, halves[0]));
        }

        static GraphTensor lengths(GraphWitness graph, String name, int... lengths) {
            GraphTensor tensor = graph.builder.tensor(name, DType.INT32, BATCH, 1, 1, 1);
            return graph.input(tensor, Arrays.stream(lengths).asDoubleStream().toArray());
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forward(Case c) {
        Problem p = new Problem(c);
        GraphWitness graph = new GraphWitness(open, "attention " + c);
        AttentionBuilder attention = p.described(graph);
        if (p.model.sink != null) {
            attention.sink(p.sink(graph));
        }
        SdpaForward result = attention.forward(p.rows(graph, "v", c.keys, p.v));
        graph.builder.output(result.o(), DataType.of(c.dtype));
        boolean statistics = !c.has(Part.RESULTS_ALONE);
        if (statistics) {
            graph.builder.output(result.stats());
        }
        GraphTensor mask = result.dropped();
        if (mask != null) {
            // What is dropped is known when the graph has run.
            graph.builder.output(mask);
            if (graph.check(Tolerances.attention(c.dtype))) {
                dropped(p, graph, result);
            }
            return;
        }
        p.model.forward(p.q, p.k, p.v);
        graph.put(result.o(), p.model.o);
        if (statistics && !c.has(Part.LENGTHS)) {
            graph.put(result.stats(), p.model.stats);
        }
        graph.check(1, Tolerances.attention(c.dtype));
    }

    private static void dropped(Problem p, GraphWitness graph, SdpaForward result) {
        float[] drawn = graph.read(result.dropped());
        p.model.dropped = new double[drawn.length];
        p.model.kept = 1 / 0.75;
        double stays = 0;
        for (int i = 0; i < drawn.length; i++) {
            p.model.dropped[i] = drawn[i];
            assertTrue(drawn[i] == 0 || drawn[i] == 1, () -> Arrays.toString(drawn));
            stays += drawn[i] / drawn.length;
        }
        assertEquals(0.75, stays, 0.02);
        p.model.forward(p.q, p.k, p.v);
        open.assertClose("o", p.model.o, graph.read(result.o()), 1, Tolerances.attention(p.c.dtype));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void backward(Case c) {
        if (c.has(Part.DROPOUT)) {
            // The mask of the forward pass comes from the same seed: the last test below.
            return;
        }
        Problem p = new Problem(c);
        p.model.forward(p.q, p.k, p.v);
        p.model.backward(p.dy, p.q, p.k, p.v);
        GraphWitness graph = new GraphWitness(open, "gradients of attention " + c);
        double[] stats = p.model.stats.clone();
        for (int i = 0; i < stats.length; i++) {
            // Rows without tokens have no sum.
            stats[i] = Double.isInfinite(stats[i]) ? 0 : stats[i];
        }
        output(graph, gradients(p, graph, stats), p);
        graph.check(1, gradients(c.dtype));
    }

    private static SdpaGradients gradients(Problem p, GraphWitness graph, double... stats) {
        AttentionBuilder attention = p.described(graph);
        if (p.model.sink != null) {
            attention.sink(p.sink(graph));
        }
        if (p.c.has(Part.BIAS_GRADIENT)) {
            attention.biasGradient();
        }
        return attention.backward(
                p.rows(graph, "dy", p.c.queries, p.dy),
                p.turned(graph, "vT", p.v),
                p.rows(graph, "o", p.c.queries, p.model.o),
                graph.input("stats", DType.FLOAT32, stats, BATCH, p.c.heads(), p.c.queries, 1));
    }

    /** Results are read in their type, and weights and gradients of scores are rounded before they are multiplied. */
    private static Tolerance gradients(DType dtype) {
        return switch (dtype) {
            case FLOAT32 -> new Tolerance("gradients of attention FLOAT32", 2e-5, 2e-4);
            case FLOAT16 -> new Tolerance("gradients of attention FLOAT16", 5e-3, 5e-2);
            default -> new Tolerance("gradients of attention BFLOAT16", 3e-2, 3e-1);
        };
    }

    private static void output(GraphWitness graph, SdpaGradients gradients, Problem p) {
        DataType type = DataType.of(p.c.dtype);
        graph.put(graph.builder.output(gradients.dq(), type), p.model.dq);
        graph.put(graph.builder.output(gradients.dk(), type), p.model.dk);
        graph.put(graph.builder.output(gradients.dv(), type), p.model.dv);
        if (gradients.dbias() != null) {
            graph.put(graph.builder.output(gradients.dbias(), type), p.model.dbias);
        }
        if (gradients.dsink() != null) {
            graph.put(graph.builder.output(gradients.dsink(), DataType.FLOAT), p.model.dsink);
        }
    }

    @ParameterizedTest
    @MethodSource("oneOperation")
    void asOneOperation(Case c) {
        Problem p = new Problem(c);
        p.model.forward(p.q, p.k, p.v);
        GraphWitness graph = new GraphWitness(open, "sdpa " + c);
        SdpaForward result = graph.builder.sdpa(
                "a",
                p.rows(graph, "q", c.queries, p.q),
                p.rows(graph, "k", c.keys, p.k),
                p.rows(graph, "v", c.keys, p.v),
                config(graph, p));
        graph.put(graph.builder.output(result.o(), DataType.of(c.dtype)), p.model.o);
        graph.builder.output(result.stats());
        if (!c.has(Part.LENGTHS)) {
            graph.put(result.stats(), p.model.stats);
        }
        graph.check(1, Tolerances.attention(c.dtype));
    }

    static Stream<Case> oneOperation() {
        return Stream.of(
                Case.of(DType.BFLOAT16, 64, 64),
                Case.of(DType.FLOAT32, 5, 3),
                Case.of(DType.FLOAT16, 64, 128, Part.LENGTHS));
    }

    /** cuDNN 9.19 takes FP32 on an H200, and then reads memory of others. */
    @Test
    void asOneOperationOfFloatsIsRefusedOnGpus() {
        GraphBuilder builder = OperationGraph.builder("floats");
        GraphTensor q = builder.tensor("q", DType.FLOAT32, 1, 2, 16, 64);
        GraphTensor k = builder.tensor("k", DType.FLOAT32, 1, 2, 16, 64);
        GraphTensor v = builder.tensor("v", DType.FLOAT32, 1, 2, 16, 64);
        SdpaForward result = builder.sdpa("a", q, k, v, SdpaConfig.of(0.125f));
        builder.output(result.o());
        builder.output(Objects.requireNonNull(result.stats()));
        assertEquals(
                "[operation \"a\": cuDNN 9.19 reads memory outside its tensors where q, k or v are FLOAT; make them HALF or"
                        + " BFLOAT16]",
                builder.build().gpuRefusals(90).toString());
    }

    private static SdpaConfig config(GraphWitness graph, Problem p) {
        SdpaConfig config = SdpaConfig.of(0.125f);
        return p.model.queryLengths == null
                ? config
                : config.withLengths(
                        Problem.lengths(graph, "lq", p.model.queryLengths),
                        Problem.lengths(graph, "lkv", p.model.keyLengths));
    }

    @ParameterizedTest
    @MethodSource("oneOperation")
    void gradientsAsOneOperation(Case c) {
        Problem p = new Problem(c);
        p.model.forward(p.q, p.k, p.v);
        p.model.backward(p.dy, p.q, p.k, p.v);
        GraphWitness graph = new GraphWitness(open, "gradients of sdpa " + c);
        double[] stats = p.model.stats.clone();
        for (int i = 0; i < stats.length; i++) {
            stats[i] = Double.isInfinite(stats[i]) ? 0 : stats[i];
        }
        SdpaForward saved = new SdpaForward(
                p.rows(graph, "o", c.queries, p.model.o),
                graph.input("stats", DType.FLOAT32, stats, BATCH, HEADS, c.queries, 1),
                null);
        SdpaGradients gradients = graph.builder.sdpaBackward(
                "a",
                p.rows(graph, "dy", c.queries, p.dy),
                p.rows(graph, "q", c.queries, p.q),
                p.rows(graph, "k", c.keys, p.k),
                p.rows(graph, "v", c.keys, p.v),
                saved,
                config(graph, p));
        output(graph, gradients, p);
        graph.check(1, gradients(c.dtype));
    }

    /** Gradients of grouped heads are sums over the queries that share a head of keys. */
    @Test
    void headsThatShareKeys() {
        GraphWitness graph = new GraphWitness(open, "grouped heads");
        GraphTensor q = graph.normal("q", DType.BFLOAT16, 1, 4, 64, 64);
        GraphTensor k = graph.normal("k", DType.BFLOAT16, 1, 2, 64, 64);
        GraphTensor v = graph.normal("v", DType.BFLOAT16, 1, 2, 64, 64);
        SdpaForward result = graph.builder.sdpa("a", q, k, v, SdpaConfig.of(0.125f));
        double[] keys = repeated(graph.of(k));
        AttentionModel model = new AttentionModel(1, 4, 64, 64, 64);
        model.forward(graph.of(q), keys, repeated(graph.of(v)));
        graph.put(graph.builder.output(result.o(), DataType.BFLOAT16), model.o);
        graph.put(graph.builder.output(result.stats()), model.stats);
        graph.check(1, Tolerances.attention(DType.BFLOAT16));
    }

    private static double[] repeated(double... heads) {
        double[] all = new double[2 * heads.length];
        for (int i = 0; i < all.length; i++) {
            all[i] = heads[i / (2 * 64 * 64) * 64 * 64 + i % (64 * 64)];
        }
        return all;
    }

    static Stream<Case> droppedInBothDirections() {
        return Stream.of(
                Case.of(DType.FLOAT32, 16, 16, Part.DROPOUT),
                Case.of(DType.FLOAT32, 16, 24, Part.DROPOUT, Part.BIAS, Part.BIAS_GRADIENT),
                Case.of(DType.BFLOAT16, 64, 64, Part.DROPOUT, Part.BIAS, Part.BIAS_GRADIENT),
                Case.of(DType.FLOAT32, 16, 16, Part.DROPOUT, Part.SINK, Part.GROUPED));
    }

    @ParameterizedTest
    @MethodSource("droppedInBothDirections")
    void dropoutOfBothDirectionsIsThatOfTheSeed(Case c) {
        Problem p = new Problem(c);
        GraphWitness graph = new GraphWitness(open, "dropout " + c);
        AttentionBuilder attention = p.described(graph);
        if (p.model.sink != null) {
            attention.sink(p.sink(graph));
        }
        SdpaForward result = attention.forward(p.rows(graph, "v", c.keys, p.v));
        graph.builder.output(result.o(), DataType.of(c.dtype));
        graph.builder.output(result.stats());
        graph.builder.output(result.dropped());
        if (!graph.check(Tolerances.attention(c.dtype))) {
            assertEquals(Provider.CUDA, Provider.current());
            return;
        }
        dropped(p, graph, result);
        p.model.backward(p.dy, p.q, p.k, p.v);
        GraphWitness back = new GraphWitness(open, "gradients with dropout " + c);
        output(back, gradients(p, back, p.model.stats), p);
        back.check(1, gradients(c.dtype));
    }
}
