package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.SoftmaxType;
import dev.chagres.witness.Rounding;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Which kernels attention over changed scores runs, that it says so, and that their results are those of the others. */
@Tag("L0")
@Tag("L1")
class AttentionScorePathsTest {
    private static final int HEADS = 4;
    private static final int DIM = 64;
    private static final int BATCH = 2;
    private static final int LENGTH = 24;
    private static final long SEED = 7;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Draws since a test began anew. */
    private int drawn;

    private static AttentionConfig config(AttentionMask mask) {
        return AttentionConfig.of(HEADS, DIM, mask);
    }

    private static Sequences dense() {
        return Sequences.dense(open.scope(), QkvFormat.BSHD, BATCH, LENGTH);
    }

    private static Sequences padded() {
        return Sequences.padded(QkvFormat.BSHD, CuSeqlens.ofLengths(open.scope(), LENGTH, 9), LENGTH);
    }

    private static Sequences packed() {
        return Sequences.packed(open.scope(), LENGTH, 9);
    }

    /** Returns numbers that BFLOAT16 has, the same for the same number of draws before. */
    private double[] draw(int count) {
        long key = CounterRandom.key(SEED, "draw " + drawn++);
        double[] values = new double[count];
        for (int i = 0; i < count; i++) {
            values[i] = Rounding.round(CounterRandom.normal(key, i), DType.BFLOAT16);
        }
        return values;
    }

    private Tensor bias(DType dtype, long... sizes) {
        int count = 1;
        for (long size : sizes) {
            count *= (int) size;
        }
        return open.tensor(dtype, draw(count), sizes);
    }

    private static void assertFused(DotProductAttention attention, Pass pass) {
        String text = attention.explain(DType.BFLOAT16, pass);
        assertTrue(text.startsWith("attention: attention by te_fused_attn_fwd_v2 and te_fused_attn_bwd_v2, "), text);
    }

    @Test
    void singlePrecision() {
        Pass pass = open.pass().begin(dense());
        String text = new DotProductAttention(config(AttentionMask.none())).explain(DType.FLOAT32, pass);
        assertTrue(text.contains("by ops_attention_forward") && text.contains("no attention in FLOAT32"), text);
    }

    /** Checks that our own kernels compute a call; a reason of {@code te's} own is checked on the reference alone. */
    private static void assertTiled(String reason, DotProductAttention attention, Pass pass) {
        String text = attention.explain(DType.BFLOAT16, pass);
        assertTrue(text.contains("by ops_attention_forward and ops_attention_backward"), text);
        boolean ours = reason.startsWith("cuDNN");
        String shown = reason.replaceFirst("^attribute \\w+( \\d)?: ", ""); // what te calls it is left out
        assertTrue((!ours && Provider.current() == Provider.CUDA) || text.contains("for " + shown), text);
    }

    private static DotProductAttention biased(AttentionConfig config, SharedInput biases) {
        DotProductAttention attention = new DotProductAttention(config);
        attention.bias(biases);
        return attention;
    }

    @Test
    void biases() {
        SharedInput biases = new SharedInput("pairs");
        DotProductAttention plain = biased(config(AttentionMask.none()), biases);
        for (Sequences sequences : List.of(dense(), padded())) {
            Pass pass = open.pass().begin(sequences);
            assertFused(plain, pass); // before there is one
            for (long[] sizes : new long[][] {{1, 1}, {1, HEADS}, {BATCH, 1}, {BATCH, HEADS}}) {
                biases.forward(bias(DType.BFLOAT16, sizes[0], sizes[1], LENGTH, LENGTH), pass);
                assertFused(plain, pass);
                biases.backward(pass);
            }
            biases.forward(bias(DType.BFLOAT16, 1, HEADS, LENGTH + 8, LENGTH + 8), pass);
            assertTiled("cuDNN takes only a bias of exactly the padded lengths", plain, pass);
            biases.backward(pass);
            Tensor wide = bias(DType.BFLOAT16, 1, HEADS, LENGTH, LENGTH + 1);
            biases.forward(open.scope().view(wide, 3, 1, HEADS, LENGTH, LENGTH), pass);
            assertTiled("cuDNN takes only a bias of exactly the padded lengths that begins at", plain, pass);
            biases.backward(pass);
            Tensor wanted = biases.forward(bias(DType.BFLOAT16, 1, HEADS, LENGTH, LENGTH), pass);
            DotProductAttention fixed = biased(config(AttentionMask.none()).deterministic(), biases);
            assertTiled("cuDNN sums the gradient of a bias in varying order", fixed, pass);
            wanted.stopGradient();
            assertFused(fixed, pass);
            assertTiled(
                    "attribute BiasType 2: cuDNN has neither bias nor ALiBi under a bottom-right causal AttnMaskType",
                    biased(config(AttentionMask.causalBottomRight()), biases),
                    pass);
            assertFused(biased(AttentionConfig.of(HEADS, 8, AttentionMask.causal()), biases), pass);
            DotProductAttention both = biased(config(AttentionMask.causal()), biases);
            both.alibi(Alibi.of(open.scope(), HEADS));
            assertTiled("cuDNN has either ALiBi or a bias", both, pass);
            biases.backward(pass);
        }
        Pass pass = open.pass().begin(packed());
        biases.forward(bias(DType.BFLOAT16, 1, HEADS, LENGTH, LENGTH), pass);
        assertTiled("attribute BiasType: cuDNN has no bias over THD", plain, pass);
    }

    @Test
    void linearBiases() {
        for (Sequences sequences : List.of(dense(), padded(), packed())) {
            Pass pass = open.pass().begin(sequences);
            DotProductAttention causal = new DotProductAttention(config(AttentionMask.causal()));
            causal.alibi(Alibi.of(open.scope(), HEADS));
            assertFused(causal, pass);
            causal.alibi(Alibi.ofSlopes(open.scope(), 0.25f, 0.0625f, 0.015625f, 0.00390625f));
            assertFused(causal, pass); // which are the usual ones
            causal.alibi(Alibi.ofSlopes(open.scope(), 1, 2, 3, 4));
            assertTiled("cuDNN's ALiBi takes no slopes", causal, pass);
            for (AttentionMask mask : List.of(AttentionMask.none(), AttentionMask.causalBottomRight())) {
                DotProductAttention other = new DotProductAttention(config(mask));
                other.alibi(Alibi.of(open.scope(), HEADS));
                assertTiled("cuDNN has ALiBi only under a top-left causal mask", other, pass);
            }
        }
    }

    /** cuDNN's kernels, which read no slopes, would not notice. */
    @Test
    void linearBiasesOfAnotherDevice() {
        DevicesNeeded.assume(2);
        try (Device other = Device.open(1);
                Scope scope = other.openScope()) {
            DotProductAttention causal = new DotProductAttention(config(AttentionMask.causal()));
            causal.alibi(Alibi.of(scope, HEADS));
            for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT32)) {
                Pass pass = open.pass().begin(packed());
                Tensor qkv = pass.scope().tensor(dtype, LENGTH + 9, 3L * HEADS * DIM);
                qkv.zero(pass.stream());
                String text = String.valueOf(
                        assertThrows(IllegalArgumentException.class, () -> causal.forwardPacked(qkv, pass))
                                .getMessage());
                assertTrue(text.startsWith("alibi: expected a tensor of "), text);
            }
        }
    }

    @Test
    void sinks() {
        for (SoftmaxType type : List.of(SoftmaxType.OFF_BY_ONE, SoftmaxType.LEARNABLE)) {
            AttentionConfig config = config(AttentionMask.causal()).withSoftmaxType(type);
            DotProductAttention attention = new DotProductAttention(config, new ModelPlan());
            assertFused(attention, open.pass().begin(dense()));
            assertFused(attention, open.pass().begin(padded()));
            assertTiled(
                    "attribute SoftmaxType " + type.code() + ": the backward of a softmax with an offset over THD",
                    attention,
                    open.pass().begin(packed()));
            assertTiled(
                    "cuDNN has no attention backward for padded batches of one token",
                    attention,
                    open.pass().begin(Sequences.dense(open.scope(), QkvFormat.BSHD, BATCH, 1)));
            assertTiled(
                    "cuDNN sums the gradients of sinks in varying order",
                    new DotProductAttention(config.deterministic(), new ModelPlan()),
                    open.pass().begin(dense()));
        }
    }

    /** What a call gave: output, gradients of query, key and value, of the bias and of the sinks. */
    private record Results(Map<String, float[]> numbers) {}

    /** Draws the same numbers whatever the type: those of BFLOAT16. */
    private Results run(DType dtype, Sequences sequences, SoftmaxType softmax, @Nullable Alibi alibi, boolean biased) {
        drawn = 0;
        ModelPlan plan = new ModelPlan();
        DotProductAttention attention = new DotProductAttention(
                config(AttentionMask.causal()).withKeyHeads(2).withSoftmaxType(softmax), plan.group("attention"));
        plan.group("other").declare("weight", Initializer.zeros(), 1);
        SharedInput biases = new SharedInput("biases");
        if (biased) {
            attention.bias(biases);
        }
        if (alibi != null) {
            attention.alibi(alibi);
        }
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            Parameter sinks = attention.sinks();
            if (sinks != null) {
                open.set(sinks.weight(), draw(HEADS));
                parameters.changed();
            }
            Map<String, float[]> numbers = new LinkedHashMap<>();
            // Two micro-batches: the second adds to gradients of parameters.
            for (int microBatch = 0; microBatch < 2; microBatch++) {
                Pass pass = open.pass().begin(sequences);
                if (biased) {
                    biases.forward(bias(dtype, 1, HEADS, LENGTH, LENGTH), pass);
                }
                Tensor q = heads(dtype, sequences, HEADS);
                Tensor k = heads(dtype, sequences, 2);
                Tensor v = heads(dtype, sequences, 2);
                Tensor dO = heads(dtype, sequences, HEADS);
                numbers.put("output", rows(sequences, open.read(attention.forward(q, k, v, pass))));
                Tensor dq = open.scope().like(q);
                Tensor dk = open.scope().like(k);
                Tensor dv = open.scope().like(v);
                attention.backward(dO, dq, dk, dv, pass);
                numbers.put("dq", rows(sequences, open.read(dq)));
                numbers.put("dk", rows(sequences, open.read(dk)));
                numbers.put("dv", rows(sequences, open.read(dv)));
                if (biased) {
                    numbers.put("dbias", open.read(biases.backward(pass)));
                }
            }
            if (sinks != null) {
                numbers.put("dsinks", open.read(sinks.gradient()));
            }
            return new Results(numbers);
        }
    }

    private Tensor heads(DType dtype, Sequences sequences, int heads) {
        int tokens = (int) sequences.tokens();
        double[] values = draw(tokens * heads * DIM);
        return sequences.format() == QkvFormat.THD
                ? open.tensor(dtype, values, tokens, heads, DIM)
                : open.tensor(dtype, values, BATCH, LENGTH, heads, DIM);
    }

    /** Returns the rows that are no padding: of the padded arrangement the second sequence has 9. */
    private static float[] rows(Sequences sequences, float[] values) {
        if (sequences.padding() == Sequences.Padding.NONE || sequences.format() == QkvFormat.THD) {
            return values;
        }
        int width = values.length / (BATCH * LENGTH);
        return Arrays.copyOf(values, (LENGTH + 9) * width);
    }

    /** In 16 bits cuDNN's kernels, or the reference's, compute; in FLOAT32 our own: from the same numbers the same results. */
    @ParameterizedTest
    @CsvSource({
        "DENSE, VANILLA, NONE, BIASED",
        "PADDED, VANILLA, NONE, BIASED",
        "DENSE, LEARNABLE, NONE, BIASED",
        "PADDED, LEARNABLE, NONE, PLAIN",
        "DENSE, OFF_BY_ONE, NONE, PLAIN",
        "DENSE, VANILLA, ALIBI, PLAIN",
        "PACKED, VANILLA, ALIBI, PLAIN",
        "PADDED, LEARNABLE, ALIBI, PLAIN"
    })
    void resultsAreThoseOfOurKernels(String arrangement, SoftmaxType softmax, String linear, String added) {
        Sequences sequences = switch (arrangement) {
            case "DENSE" -> dense();
            case "PADDED" -> padded();
            default -> packed();
        };
        Alibi alibi = linear.equals("ALIBI") ? Alibi.of(open.scope(), HEADS) : null;
        boolean biased = added.equals("BIASED");
        Results expected = run(DType.FLOAT32, sequences, softmax, alibi, biased);
        Results actual = run(DType.BFLOAT16, sequences, softmax, alibi, biased);
        assertEquals(expected.numbers.keySet(), actual.numbers.keySet());
        expected.numbers.forEach((what, numbers) -> {
            double[] wanted = new double[numbers.length];
            for (int i = 0; i < wanted.length; i++) {
                wanted[i] = numbers[i];
            }
            open.assertClose(
                    what, wanted, present(actual.numbers.get(what)), 0.2, Tolerances.attention(DType.BFLOAT16));
        });
    }

    private static float[] present(float @Nullable [] values) {
        if (values == null) {
            throw new AssertionError("nothing");
        }
        return values;
    }

    /** Sinks and biases that nobody wants gradients of: those of the rest are the same. */
    @Test
    void unwantedGradients() {
        List<float[]> gradients = new ArrayList<>();
        for (boolean wanted : new boolean[] {true, false}) {
            drawn = 0;
            ModelPlan plan = new ModelPlan();
            SharedInput biases = new SharedInput("biases");
            DotProductAttention attention = new DotProductAttention(
                    config(AttentionMask.none()).withSoftmaxType(SoftmaxType.LEARNABLE), plan.group("attention"));
            attention.bias(biases);
            Parameter sinks = attention.sinks();
            if (!wanted && sinks != null) {
                sinks.freeze();
            }
            try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
                Sequences sequences = dense();
                Pass pass = open.pass().begin(sequences);
                Tensor bias = bias(DType.BFLOAT16, BATCH, 1, LENGTH, LENGTH);
                if (!wanted) {
                    bias.stopGradient();
                }
                biases.forward(bias, pass);
                assertFused(attention, pass);
                Tensor q = heads(DType.BFLOAT16, sequences, HEADS);
                attention.forward(q, q, q, pass);
                Tensor dq = open.scope().like(q);
                attention.backward(
                        heads(DType.BFLOAT16, sequences, HEADS),
                        dq,
                        open.scope().like(q),
                        open.scope().like(q),
                        pass);
                float[] sum = open.read(biases.backward(pass));
                assertTrue(wanted || allZero(sum));
                gradients.add(open.read(dq));
                assertEquals(1, parameters.all().size());
            }
        }
        close(gradients.get(0), gradients.get(1));
    }

    private static boolean allZero(float[] values) {
        for (float value : values) {
            if (value != 0) {
                return false;
            }
        }
        return true;
    }

    /** The reference's bits are the same each time; cuDNN may add gradients up in another order. */
    private static void close(float[] expected, float[] actual) {
        if (Provider.current() == Provider.REFERENCE) {
            assertArrayEquals(expected, actual);
        } else {
            assertArrayEquals(expected, actual, 0.05f);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"DENSE", "PADDED"})
    void recomputed(String arrangement) {
        List<float[]> results = new ArrayList<>();
        for (boolean again : new boolean[] {false, true}) {
            drawn = 0;
            ModelPlan plan = new ModelPlan();
            SharedInput biases = new SharedInput("biases");
            MultiheadAttention attention = new MultiheadAttention(
                    NormConfig.layerNorm(32),
                    config(AttentionMask.causal())
                            .withSoftmaxType(SoftmaxType.LEARNABLE)
                            .withDropout(Dropout.of(0.2f)),
                    Initializer.normal(0.3f),
                    plan.group("attention"));
            attention.bias(biases);
            Layer layer = again ? new Recomputed(attention) : attention;
            try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 3)) {
                Sequences sequences = arrangement.equals("DENSE") ? dense() : padded();
                Pass pass = open.pass().begin(sequences);
                pass.seed(SEED, 1, 0);
                biases.forward(bias(DType.BFLOAT16, 1, HEADS, LENGTH, LENGTH), pass);
                int tokens = BATCH * LENGTH;
                Tensor x = open.tensor(DType.BFLOAT16, draw(tokens * 32), tokens, 32);
                Tensor dy = open.tensor(DType.BFLOAT16, draw(tokens * 32), tokens, 32);
                results.add(open.read(layer.forward(x, pass)));
                results.add(open.read(layer.backward(dy, pass)));
                results.add(open.read(biases.backward(pass)));
                for (Parameter parameter : parameters.all()) {
                    results.add(open.read(parameter.gradient()));
                }
            }
        }
        int half = results.size() / 2;
        for (int i = 0; i < half; i++) {
            float[] expected = results.get(i);
            float[] actual = results.get(half + i);
            if (Provider.current() == Provider.REFERENCE) {
                assertArrayEquals(expected, actual, "result " + i);
            } else {
                assertArrayEquals(expected, actual, 0.25f, "result " + i);
            }
        }
    }

    /** A replayed graph computes with the bias of its time, as calls one by one do. */
    @Test
    void replays() {
        SharedInput biases = new SharedInput("biases");
        DotProductAttention attention =
                biased(config(AttentionMask.causal()).withSoftmaxType(SoftmaxType.OFF_BY_ONE), biases);
        Sequences sequences = dense();
        Tensor bias = bias(DType.BFLOAT16, 1, HEADS, LENGTH, LENGTH);
        Tensor q = heads(DType.BFLOAT16, sequences, HEADS);
        Tensor dq = open.scope().like(q);
        Tensor dk = open.scope().like(q);
        Tensor dv = open.scope().like(q);
        Tensor dbias = open.scope().like(bias);
        Pass pass = open.pass();
        Runnable step = () -> {
            pass.begin(sequences);
            biases.forward(bias, pass);
            attention.backward(attention.forward(q, q, q, pass), dq, dk, dv, pass);
            dbias.copyFrom(open.stream(), biases.backward(pass));
        };
        step.run();
        try (Graph graph = open.stream().capture(step)) {
            open.set(bias, draw(HEADS * LENGTH * LENGTH));
            graph.launch();
            float[] replayed = open.read(dq);
            float[] replayedBias = open.read(dbias);
            step.run();
            close(open.read(dq), replayed);
            close(open.read(dbias), replayedBias);
        }
    }

    @Test
    void makesNoGarbage() {
        SharedInput biases = new SharedInput("biases");
        DotProductAttention attention =
                biased(config(AttentionMask.causal()).withSoftmaxType(SoftmaxType.OFF_BY_ONE), biases);
        Sequences sequences = dense();
        Tensor bias = bias(DType.BFLOAT16, 1, HEADS, LENGTH, LENGTH);
        Tensor q = heads(DType.BFLOAT16, sequences, HEADS);
        Tensor dq = open.scope().like(q);
        Tensor dk = open.scope().like(q);
        Tensor dv = open.scope().like(q);
        Pass pass = open.pass();
        Allocation.assertNone("attention over a bias", () -> {
            pass.begin(sequences);
            biases.forward(bias, pass);
            attention.backward(attention.forward(q, q, q, pass), dq, dk, dv, pass);
            biases.backward(pass);
        });
    }
}
