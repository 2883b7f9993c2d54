package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.conformance.Tolerances;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.SoftmaxType;
import dev.chagres.witness.AttentionWitness;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Attention with a soft cap as graphs of cuDNN's: against double precision, with gradients by either kernels, and when which are taken. */
@Tag("L0")
@Tag("L1")
class CappedAttentionTest {
    private static final float CAP = 2;
    private static final String GRAPH = "attention by a graph of cuDNN's, for TE has no soft cap of the scores";
    private static final String OWN_GRADIENTS = "its gradients by ops_attention_backward, for ";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Three sequences of so many queries and keys; {@code expected} stands in the explanation. */
    record Case(DType dtype, QkvFormat format, AttentionConfig config, int queries, int keys, String expected) {
        @Override
        public String toString() {
            return dtype + " " + format + " " + config.heads() + "/" + config.keyHeads() + " x " + config.headDim()
                    + " " + config.mask() + " " + queries + "/" + keys;
        }

        TokenRows rows(int tokens) {
            return TokenRows.padded(format, tokens, tokens, tokens, tokens);
        }

        Tensor tensor(int tokens, int heads, RealMatrix values) {
            Shape shape = format == QkvFormat.BSHD
                    ? Shape.of(3, tokens, heads, config.headDim())
                    : Shape.of(tokens, 3, heads, config.headDim());
            Tensor tensor = open.scope().tensor(dtype, shape);
            open.set(tensor, values);
            return tensor;
        }

        RealMatrix drawn(int tokens, int heads) {
            return open.normal(dtype, 3 * tokens, heads * config.headDim(), 1);
        }
    }

    static List<Case> cases() {
        AttentionMask causal = AttentionMask.causal();
        String graphs = "its gradients by another, which wants about ";
        List<Case> cases = new ArrayList<>();
        for (QkvFormat format : List.of(QkvFormat.BSHD, QkvFormat.SBHD)) {
            cases.add(new Case(DType.BFLOAT16, format, config(2, 2, 64, causal), 33, 33, graphs));
            cases.add(new Case(DType.BFLOAT16, format, config(4, 2, 32, AttentionMask.none()), 17, 40, graphs));
        }
        AttentionMask bottomRight = AttentionMask.causalBottomRight();
        AttentionMask window = AttentionMask.none().withWindow(9, 3);
        cases.add(new Case(DType.FLOAT16, QkvFormat.BSHD, config(3, 1, 16, causal), 20, 20, graphs));
        cases.add(new Case(DType.BFLOAT16, QkvFormat.BSHD, config(2, 2, 128, causal), 40, 16, graphs));
        cases.add(new Case(DType.BFLOAT16, QkvFormat.BSHD, config(4, 1, 40, bottomRight), 16, 40, graphs));
        cases.add(new Case(DType.BFLOAT16, QkvFormat.SBHD, config(2, 1, 64, window), 30, 48, graphs));
        AttentionMask endless = AttentionMask.none().withWindow(Long.MAX_VALUE, 1L << 40);
        cases.add(new Case(DType.BFLOAT16, QkvFormat.BSHD, config(1, 1, 8, endless), 9, 17, graphs));
        cases.add(new Case(
                DType.BFLOAT16,
                QkvFormat.BSHD,
                config(2, 2, 64, causal.withWindow(3, 0)),
                48,
                48,
                OWN_GRADIENTS + "a window narrower than an eighth of the keys"));
        cases.add(new Case(
                DType.BFLOAT16,
                QkvFormat.BSHD,
                config(2, 2, 64, causal).deterministic(),
                33,
                33,
                OWN_GRADIENTS + "sums in the same order each time"));
        return cases;
    }

    private static AttentionConfig config(int heads, int keyHeads, int headDim, AttentionMask mask) {
        return AttentionConfig.of(heads, headDim, mask).withKeyHeads(keyHeads).withSoftcap(CAP);
    }

    /** Returns attention that takes graphs on the CPU reference, too. */
    private static DotProductAttention byGraphs(AttentionConfig config) {
        DotProductAttention attention = new DotProductAttention(config);
        attention.capped.takeReference();
        return attention;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void equalsDoublePrecision(Case c) {
        int heads = c.config.heads();
        int keyHeads = c.config.keyHeads();
        RealMatrix q = c.drawn(c.queries, heads).scalarMultiply(2);
        RealMatrix k = c.drawn(c.keys, keyHeads);
        RealMatrix v = c.drawn(c.keys, keyHeads);
        RealMatrix dO = c.drawn(c.queries, heads);
        AttentionWitness witness = new AttentionWitness(
                c.config, c.rows(c.queries).rows(), c.rows(c.keys).rows());
        Pass pass = open.pass()
                .begin(Sequences.dense(open.scope(), c.format, 3, c.queries)
                        .withKeys(Sequences.dense(open.scope(), c.format, 3, c.keys)));
        DotProductAttention attention = byGraphs(c.config);
        String text = attention.explain(c.dtype, pass);
        assertTrue(text.contains(GRAPH) && text.contains(c.expected), text);

        Tensor query = c.tensor(c.queries, heads, q);
        Tensor key = c.tensor(c.keys, keyHeads, k);
        Tensor value = c.tensor(c.keys, keyHeads, v);
        Tensor output = attention.forward(query, key, value, pass);
        open.assertClose("o", witness.forward(q, k, v), output, Tolerances.attention(c.dtype));
        Tensor dq = open.scope().like(query);
        Tensor dk = open.scope().like(key);
        Tensor dv = open.scope().like(key);
        attention.backward(c.tensor(c.queries, heads, dO), dq, dk, dv, pass);
        witness.backward(dO);
        open.assertClose("dq", witness.dq(), dq, Tolerances.attention(c.dtype));
        open.assertClose("dk", witness.dk(), dk, Tolerances.attention(c.dtype));
        open.assertClose("dv", witness.dv(), dv, Tolerances.attention(c.dtype));
    }

    private static void assertOwn(String reason, AttentionConfig config, DType dtype, Sequences sequences) {
        String text = new DotProductAttention(config).explain(dtype, open.pass().begin(sequences));
        assertTrue(text.contains("attention by ops_attention_forward") && text.contains(reason), text);
    }

    @Test
    void ourOwnKernelsTakeTheRest() {
        AttentionConfig config = config(2, 2, 64, AttentionMask.causal());
        Sequences dense = Sequences.dense(open.scope(), QkvFormat.BSHD, 2, 16);
        String cap = "cuDNN's graph of a soft cap ";
        if (open.device().provider() == Provider.REFERENCE) {
            assertOwn(
                    "and the CPU reference is slower by " + cap.strip() + ", which a GPU takes",
                    config,
                    DType.BFLOAT16,
                    dense);
        }
        assertOwn("_backward, for cuDNN has no attention in FLOAT32; scores capped", config, DType.FLOAT32, dense);
        assertOwn(
                cap + "takes dense sequences of full length, of several tokens",
                config,
                DType.BFLOAT16,
                Sequences.packed(open.scope(), 7, 5));
        assertOwn(
                cap + "takes dense sequences of full length, of several tokens",
                config,
                DType.BFLOAT16,
                Sequences.dense(open.scope(), QkvFormat.BSHD, 2, 1));
        String alone = cap + "has nothing else that changes scores or weights";
        assertOwn(alone, config.withSoftmaxType(SoftmaxType.OFF_BY_ONE), DType.BFLOAT16, dense);
        assertOwn(alone, config.withDropout(Dropout.of(0.1f)), DType.BFLOAT16, dense);
        assertOwn(
                cap + "does not write 0 for queries without keys",
                config.withMask(AttentionMask.causalBottomRight()),
                DType.BFLOAT16,
                dense.withKeys(Sequences.dense(open.scope(), QkvFormat.BSHD, 2, 8)));
    }

    /** Twenty shapes one after the other and again: of those that were found first the plans are found once more. */
    @Test
    void manyShapesTakeTurns() {
        DotProductAttention attention = byGraphs(config(1, 1, 8, AttentionMask.none()));
        float[][] first = new float[20][];
        for (int turn = 0; turn < 2; turn++) {
            for (int i = 0; i < first.length; i++) {
                int length = 2 + i;
                Pass pass = open.pass().begin(Sequences.dense(open.scope(), QkvFormat.BSHD, 1, length));
                Tensor x = open.scope().tensor(DType.BFLOAT16, 1, length, 1, 8);
                float[] values = new float[8 * length];
                for (int j = 0; j < values.length; j++) {
                    values[j] = (j * 7 % 11 - 5) / 4f;
                }
                x.set(open.stream(), values);
                float[] output = open.read(attention.forward(x, x, x, pass));
                if (turn == 0) {
                    first[i] = output;
                } else {
                    assertArrayEquals(first[i], output);
                }
            }
        }
    }

    @Test
    void stepsMakeNoGarbage() {
        DotProductAttention attention = byGraphs(config(2, 2, 16, AttentionMask.causal()));
        Sequences sequences = Sequences.dense(open.scope(), QkvFormat.BSHD, 2, 8);
        Tensor[] tensors = new Tensor[7];
        Arrays.setAll(tensors, i -> {
            Tensor tensor = open.scope().tensor(DType.BFLOAT16, 2, 8, 2, 16);
            tensor.set(open.stream(), new float[512]);
            return tensor;
        });
        Pass pass = open.pass();
        Allocation.assertNone("capped attention", () -> {
            attention.forward(tensors[0], tensors[1], tensors[2], pass.begin(sequences));
            attention.backward(tensors[3], tensors[4], tensors[5], tensors[6], pass);
        });
    }

    @Test
    void aCapturedCallIsReplayed() {
        DotProductAttention attention = byGraphs(config(2, 2, 16, AttentionMask.causal()));
        Sequences sequences = Sequences.dense(open.scope(), QkvFormat.BSHD, 2, 8);
        Tensor x = open.scope().tensor(DType.BFLOAT16, 2, 8, 2, 16);
        x.set(open.stream(), new float[512]);
        Pass pass = open.pass();
        Tensor[] results = new Tensor[1];
        Runnable forward = () -> results[0] = attention.forward(x, x, x, pass.begin(sequences));
        forward.run();
        pass.end();
        try (Graph graph = open.stream().capture(forward)) {
            float[] ones = new float[512];
            Arrays.fill(ones, 3);
            x.set(open.stream(), ones);
            graph.launch();
            assertEquals(3, open.read(results[0])[0]);
        }
    }

    @Test
    void aDeviceThatIsOpenedAgainHasPlansOfItsOwn() {
        DotProductAttention attention = byGraphs(config(1, 1, 8, AttentionMask.none()));
        for (int turn = 0; turn < 2; turn++) {
            try (Device device = Device.open();
                    Scope scope = device.openScope();
                    Pass pass = Pass.evaluation(device)) {
                Tensor x = scope.tensor(DType.BFLOAT16, 1, 4, 1, 8);
                x.set(device.stream(), new float[32]);
                pass.begin(Sequences.dense(scope, QkvFormat.BSHD, 1, 4));
                assertEquals(0, attention.forward(x, x, x, pass).toFloats(device.stream())[0]);
            }
        }
    }
}
