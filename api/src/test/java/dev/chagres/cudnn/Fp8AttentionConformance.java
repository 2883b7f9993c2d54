package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.cudnn.AttentionBuilder.Diagonal;
import dev.chagres.witness.Float8Witness;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Attention of FP8 tensors with their scales, forward and backward, against double precision that rounds where cuDNN does. */
@Tag("L0")
@Tag("L1")
class Fp8AttentionConformance {
    private static final int BATCH = 2;
    private static final int HEADS = 4;
    private static final int TOKENS = 64;
    private static final int WIDTH = 128;
    private static final double SCALE_S = 256;
    private static final double SCALE_O = 64;
    private static final double SCALE_GRADIENT = 32;
    /** A result that another order of sums rounds the other way is a step of E4M3 off: at most 2^-3 of a number. */
    private static final Tolerance E4M3 = new Tolerance("attention E4M3", 0x1p-5, 0x1p-3 + 1e-3);

    /** The same for half a step of E5M2, and gradients, whose terms are larger. */
    private static final Tolerance E5M2 = new Tolerance("gradients of attention E5M2", 0x1p-3, 0.25);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** FP8 numbers, and what they stand for. */
    private record Eight(double[] bits, double descale) {
        static Eight drawn(DType dtype, int count, double descale) {
            double[] normal = open.normal(DType.FLOAT32, count, 1);
            return new Eight(
                    Arrays.stream(normal)
                            .map(x -> Float8Witness.nearest(x / descale, dtype))
                            .toArray(),
                    descale);
        }

        double[] values() {
            return Arrays.stream(bits).map(x -> x * descale).toArray();
        }
    }

    private static final class Problem {
        final GraphWitness graph;
        final int keyHeads;
        final boolean causal;
        final boolean lengths;
        final AttentionModel model = new AttentionModel(BATCH, HEADS, TOKENS, TOKENS, WIDTH);
        final Eight q = Eight.drawn(DType.FLOAT8_E4M3, BATCH * HEADS * TOKENS * WIDTH, 0x1p-5);
        final Eight k;
        final Eight v;

        Problem(String name, int keyHeads, boolean causal, boolean lengths) {
            graph = new GraphWitness(open, name + " heads of keys " + keyHeads + (causal ? " causal" : ""));
            this.keyHeads = keyHeads;
            this.causal = causal;
            this.lengths = lengths;
            k = Eight.drawn(DType.FLOAT8_E4M3, BATCH * keyHeads * TOKENS * WIDTH, 0x1p-6);
            v = Eight.drawn(DType.FLOAT8_E4M3, BATCH * keyHeads * TOKENS * WIDTH, 0x1p-4);
            model.keyHeads = keyHeads;
            model.after = causal ? 0 : Long.MAX_VALUE;
            model.queryLengths = lengths ? new int[] {TOKENS, TOKENS - 13} : null;
            model.keyLengths = lengths ? new int[] {TOKENS - 5, TOKENS} : null;
            model.roundedWeight = x -> Float8Witness.nearest(x * SCALE_S, DType.FLOAT8_E4M3) / SCALE_S;
            model.forward(q.values(), k.values(), v.values());
        }

        GraphTensor rows(String name, DType dtype, double... bits) {
            long heads = bits.length / (BATCH * TOKENS * WIDTH);
            return graph.float8(graph.builder.tensor(name, dtype, BATCH, heads, TOKENS, WIDTH), bits);
        }

        /** The same memory as [B, H, D, S]. */
        GraphTensor turned(String name, double... bits) {
            long head = (long) TOKENS * WIDTH;
            GraphTensor tensor = graph.builder.tensor(
                    name, DType.FLOAT8_E4M3, new long[] {BATCH, keyHeads, WIDTH, TOKENS}, new long[] {
                        keyHeads * head, head, 1, WIDTH
                    });
            double[] moved = new double[bits.length];
            for (int i = 0; i < moved.length; i++) {
                int inHead = i % (int) head;
                moved[i] = bits[i - inHead + inHead % TOKENS * WIDTH + inHead / TOKENS];
            }
            return graph.float8(tensor, moved);
        }

        AttentionBuilder described() {
            AttentionBuilder attention = graph.builder
                    .attention("a", rows("q", DType.FLOAT8_E4M3, q.bits), turned("kT", k.bits))
                    .scale(0.125f);
            if (causal) {
                attention.causal(Diagonal.TOP_LEFT);
            }
            if (lengths) {
                attention.lengths(numbers("lq", model.queryLengths), numbers("lkv", model.keyLengths));
            }
            return attention;
        }

        private GraphTensor numbers(String name, int... numbers) {
            GraphTensor tensor = graph.builder.tensor(name, DType.INT32, BATCH, 1, 1, 1);
            return graph.input(tensor, Arrays.stream(numbers).asDoubleStream().toArray());
        }

        void scale(String name, double value) {
            graph.input(graph.builder.declared("a." + name, DataType.FLOAT, 1, 1, 1, 1), value);
        }

        private void close(String name, GraphTensor result, double scale, Tolerance tolerance, double... expected) {
            double[] scaled = Arrays.stream(expected)
                    .map(x -> Float8Witness.nearest(x * scale, result.type().dtype()) / scale)
                    .toArray();
            double[] bits = graph.readFloat8(result);
            float[] actual = new float[bits.length];
            for (int i = 0; i < bits.length; i++) {
                actual[i] = (float) (bits[i] / scale);
            }
            open.assertClose(name, scaled, actual, 1, tolerance);
        }

        /** Each term may be rounded to E4M3, by half a step. */
        private void largest(GraphTensor amax, double... of) {
            double most = Arrays.stream(of).map(Math::abs).max().orElseThrow();
            assertEquals(most, graph.read(amax)[0], 0x1p-4 * most, amax.name());
        }
    }

    @ParameterizedTest
    @CsvSource({"4, false, false", "2, true, false", "1, false, true", "4, true, true"})
    void forward(int keyHeads, boolean causal, boolean lengths) {
        Problem p = new Problem("fp8 attention", keyHeads, causal, lengths);
        Fp8Forward result = p.described().forwardFp8(p.rows("v", DType.FLOAT8_E4M3, p.v.bits), DataType.FP8_E4M3);
        p.graph.builder.output(result.o());
        p.scale("descaleQ", p.q.descale);
        p.scale("descaleK", p.k.descale);
        p.scale("descaleV", p.v.descale);
        p.scale("descaleS", 1 / SCALE_S);
        p.scale("scaleS", SCALE_S);
        p.scale("scaleO", SCALE_O);
        if (!p.graph.check(E4M3)) {
            assertEquals(Provider.CUDA, Provider.current());
            return;
        }
        p.close("o", result.o(), SCALE_O, E4M3, p.model.o);
        p.largest(result.amaxO(), p.model.o);
        p.largest(result.amaxS(), p.model.largestShare());
    }

    @ParameterizedTest
    @CsvSource({"4, false, false", "2, true, false", "1, false, true"})
    void backward(int keyHeads, boolean causal, boolean lengths) {
        Problem p = new Problem("gradients of fp8 attention", keyHeads, causal, lengths);
        Eight dy = Eight.drawn(DType.FLOAT8_E5M2, BATCH * HEADS * TOKENS * WIDTH, 0x1p-8);
        double[] o = Arrays.stream(p.model.o)
                .map(x -> Float8Witness.nearest(x * SCALE_O, DType.FLOAT8_E4M3))
                .toArray();
        p.model.o = Arrays.stream(o).map(x -> x / SCALE_O).toArray();
        p.model.roundedGradient = x -> Float8Witness.nearest(x * SCALE_GRADIENT, DType.FLOAT8_E5M2) / SCALE_GRADIENT;
        p.model.backward(dy.values(), p.q.values(), p.k.values(), p.v.values());
        double[] stats = Arrays.stream(p.model.stats)
                .map(x -> Double.isInfinite(x) ? 0 : x)
                .toArray();
        Fp8Gradients gradients = p.described()
                .backwardFp8(
                        p.rows("dy", DType.FLOAT8_E5M2, dy.bits),
                        p.turned("vT", p.v.bits),
                        p.rows("o", DType.FLOAT8_E4M3, o),
                        p.graph.input("stats", DType.FLOAT32, stats, BATCH, HEADS, TOKENS, 1),
                        DataType.FP8_E5M2);
        p.graph.builder.output(gradients.dq());
        p.graph.builder.output(gradients.dk());
        p.graph.builder.output(gradients.dv());
        p.scale("descaleQ", p.q.descale);
        p.scale("descaleK", p.k.descale);
        p.scale("descaleV", p.v.descale);
        p.scale("descaleO", 1 / SCALE_O);
        p.scale("descaleDy", dy.descale);
        p.scale("descaleS", 1 / SCALE_S);
        p.scale("scaleS", SCALE_S);
        p.scale("descaleDp", 1 / SCALE_GRADIENT);
        p.scale("scaleDp", SCALE_GRADIENT);
        p.scale("scaleDq", 2);
        p.scale("scaleDk", 4);
        p.scale("scaleDv", 8);
        if (!p.graph.check(E5M2)) {
            assertEquals(Provider.CUDA, Provider.current());
            return;
        }
        p.close("dq", gradients.dq(), 2, E5M2, p.model.dq);
        p.close("dk", gradients.dk(), 4, E5M2, p.model.dk);
        p.close("dv", gradients.dv(), 8, E5M2, p.model.dv);
        p.largest(gradients.amaxDq(), p.model.dq);
        p.largest(gradients.amaxDk(), p.model.dk);
        p.largest(gradients.amaxDv(), p.model.dv);
        p.largest(gradients.amaxDp(), p.model.largestGradient);
    }

    @Test
    void whatGpusLackIsNamed() {
        GraphBuilder builder = OperationGraph.builder("g");
        GraphTensor q = builder.tensor("q", DType.FLOAT8_E4M3, 1, 4, 16, 24);
        GraphTensor kT = builder.tensor("k", DType.FLOAT8_E4M3, 1, 4, 24, 16);
        GraphTensor v = builder.tensor("v", DType.FLOAT8_E4M3, 1, 4, 16, 24);
        Fp8Forward result =
                builder.attention("a", q, kT).causal(Diagonal.BOTTOM_RIGHT).forwardFp8(v, DataType.BFLOAT16);
        builder.output(result.o());
        assertEquals(
                "[operation \"a.after\": cuDNN 9.19 takes heads of a multiple of 16 elements up to 256 in FP8, got 24,"
                        + " operation \"a.after\": cuDNN 9.19 computes attention in FP8 with a diagonal that ends bottom right"
                        + " with a result of BFLOAT16 from compute capability 10.0 on, got 9.0]",
                builder.build().gpuRefusals(90).toString());
    }
}
