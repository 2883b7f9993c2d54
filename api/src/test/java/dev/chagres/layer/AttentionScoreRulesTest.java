package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.HostBuffer;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.MaskType;
import dev.chagres.te.SoftmaxType;
import dev.chagres.witness.ScoredAttention;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What DotProductAttention does with scores: everything together against double precision, errors, explanations. */
@Tag("L0")
@Tag("L1")
class AttentionScoreRulesTest {
    private static final int HEADS = 4;
    private static final int DIM = 8;
    private static final int TOKENS = 12;
    private static final double STEP = 1e-4;
    private static final double TOLERANCE = 2e-5;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static AttentionConfig config() {
        return AttentionConfig.of(HEADS, DIM, AttentionMask.causal());
    }

    private static Tensor heads(double[] values) {
        return open.tensor(DType.FLOAT32, values, TOKENS, HEADS, DIM);
    }

    private static double[] draw(int count) {
        return open.normal(DType.FLOAT32, count, 1);
    }

    private static Tensor mask(byte[] values, long... sizes) {
        Tensor mask = open.scope().tensor(DType.BYTE, Shape.of(sizes));
        try (HostBuffer host = HostBuffer.pageable(open.device(), values.length)) {
            host.segment().copyFrom(MemorySegment.ofArray(values));
            mask.copyFrom(open.stream(), host.segment());
            open.stream().synchronize();
        }
        return mask;
    }

    /** Compares elements of a gradient with what the loss does when they move. */
    private static void check(ScoredAttention witness, double[] dO, String what, float[] actual, double[] numbers) {
        for (int sample = 0; sample < 20; sample++) {
            int i = open.random().nextInt(numbers.length);
            double before = numbers[i];
            numbers[i] = before + STEP;
            double more = witness.loss(dO);
            numbers[i] = before - STEP;
            double less = witness.loss(dO);
            numbers[i] = before;
            assertEquals((more - less) / (2 * STEP), actual[i], TOLERANCE, what + "[" + i + "]");
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void everythingTogether(boolean preScale) {
        ModelPlan plan = new ModelPlan();
        AttentionConfig config = config().withSoftcap(2).withSoftmaxType(SoftmaxType.LEARNABLE);
        DotProductAttention attention = new DotProductAttention(config, plan.group("attention"));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            TokenRows rows = TokenRows.packed(7, 5);
            ScoredAttention witness = new ScoredAttention(
                    rows,
                    rows,
                    HEADS,
                    HEADS,
                    MaskType.PADDING_CAUSAL,
                    config.scale(),
                    draw(TOKENS * HEADS * DIM),
                    draw(TOKENS * HEADS * DIM),
                    draw(TOKENS * HEADS * DIM));
            witness.cap = 2;
            witness.slopes = new double[] {0.25, 0.0625, 0.015625, 0.00390625};
            witness.softmax = SoftmaxType.LEARNABLE;
            witness.sinks = draw(HEADS);
            open.set(present(attention.sinks()).weight(), witness.sinks);
            parameters.changed();
            attention.alibi(Alibi.of(open.scope(), HEADS));
            SharedInput biases = new SharedInput("biases");
            attention.preScaleBias(biases);
            if (!preScale) {
                attention.bias(biases); // the later one counts
            }
            witness.preScale = preScale;
            witness.biasShape = new int[] {1, HEADS, 7, 7};
            witness.bias = draw(HEADS * 49);
            witness.maskShape = new int[] {2, 1, 7, 8};
            witness.mask = new byte[2 * 7 * 8];
            witness.mask[3 * 8 + 1] = 1;
            witness.mask[8 * 7 + 2 * 8] = 1;
            Tensor bias = open.tensor(DType.FLOAT32, witness.bias, 1, HEADS, 7, 7);
            Pass pass = open.pass()
                    .begin(Sequences.packed(open.scope(), 7, 5).withScoreMask(mask(witness.mask, 2, 1, 7, 8)));
            biases.forward(bias, pass);
            double[] dO = draw(TOKENS * HEADS * DIM);
            float[] output = open.read(attention.forward(heads(witness.q), heads(witness.k), heads(witness.v), pass));
            double[] expected = witness.output(null);
            for (int i = 0; i < output.length; i++) {
                assertEquals(expected[i], output[i], TOLERANCE, "output[" + i + "]");
            }
            Tensor dq = heads(dO);
            Tensor dk = heads(dO);
            Tensor dv = heads(dO);
            attention.backward(heads(dO), dq, dk, dv, pass);
            check(witness, dO, "dq", open.read(dq), witness.q);
            check(witness, dO, "dk", open.read(dk), witness.k);
            check(witness, dO, "dv", open.read(dv), witness.v);
            check(witness, dO, "bias", open.read(biases.backward(pass)), witness.bias);
            float[] sinks = open.read(present(attention.sinks()).gradient());
            check(witness, dO, "sinks", sinks, witness.sinks);
        }
    }

    private static <V> V present(@Nullable V value) {
        assertNotNull(value);
        return value;
    }

    /** Slopes of TE's {@code get_alibi_slopes}. */
    @Test
    void slopes() {
        assertEquals(8, Alibi.of(open.scope(), 8).heads());
        float[] eight = open.read(Alibi.of(open.scope(), 8).slopes());
        float[] six = open.read(Alibi.of(open.scope(), 6).slopes());
        for (int i = 0; i < 8; i++) {
            assertEquals(Math.pow(2, -(i + 1)), eight[i], 1e-9);
        }
        double[] expected = {1 / 4d, 1 / 16d, 1 / 64d, 1 / 256d, 1 / 2d, 1 / 8d};
        for (int i = 0; i < 6; i++) {
            assertEquals(expected[i], six[i], 1e-9);
        }
    }

    @Test
    void explains() {
        Sequences sequences = Sequences.packed(open.scope(), 7, 5);
        AttentionConfig wide = AttentionConfig.of(HEADS, 64, AttentionMask.causal());
        DotProductAttention capped = new DotProductAttention(wide.withSoftcap(50));
        Pass pass = open.pass().begin(sequences);
        boolean gpu = open.device().provider() == Provider.CUDA;
        assertEquals(
                "attention: attention by ops_attention_forward and ops_attention_backward, for TE has no soft cap of the scores,"
                        + " and cuDNN's graph of a soft cap takes dense sequences of full length, of several tokens; scores capped at 50.0",
                capped.explain(DType.BFLOAT16, pass));
        DotProductAttention biased = new DotProductAttention(wide);
        assertEquals(
                "attention: attention by te_fused_attn_fwd_v2 and te_fused_attn_bwd_v2, which "
                        + (gpu
                                ? "run cuDNN's kernels; gradients may differ in their last bits from call to call"
                                : "the CPU reference computes"),
                biased.explain(DType.BFLOAT16, pass));
        biased.alibi(Alibi.ofSlopes(open.scope(), 1, 2, 3, 4));
        assertTrue(biased.explain(DType.BFLOAT16, pass).endsWith("for cuDNN's ALiBi takes no slopes; ALiBi"));
        DotProductAttention before = new DotProductAttention(wide);
        before.preScaleBias(new SharedInput("pairs"));
        assertTrue(
                before.explain(DType.BFLOAT16, pass)
                        .endsWith("for cuDNN has no bias before the scale; bias before the scale of SharedInput pairs"),
                before.explain(DType.BFLOAT16, pass));
        DotProductAttention sunk = new DotProductAttention(wide.withSoftmaxType(SoftmaxType.OFF_BY_ONE));
        assertNull(sunk.sinks());
        String packed = sunk.explain(DType.BFLOAT16, pass);
        assertTrue(packed.contains("by ops_attention_forward") && packed.endsWith("; softmax OFF_BY_ONE"), packed);
        if (!gpu) {
            assertTrue(packed.contains("over THD needs cuDNN 9.26"), packed);
        }
        Pass masked = open.pass().begin(sequences.withScoreMask(mask(new byte[49], 1, 1, 7, 7)));
        assertTrue(
                new DotProductAttention(wide).explain(DType.BFLOAT16, masked).endsWith("cuDNN has no mask by element"));
    }

    /** Attention's scale holds what L2 norms leave out, and would take it from the bias, too. */
    @Test
    void noBiasBeforeTheScaleBehindL2Norms() {
        AttentionConfig config = config().withQkNorm(QkNorm.of(QkNorm.Kind.L2));
        ModelPlan plan = new ModelPlan();
        MultiheadAttention self =
                new MultiheadAttention(NormConfig.layerNorm(64), config, Initializer.zeros(), plan.child("self"));
        SharedInput biases = new SharedInput("biases");
        assertThrown(
                IllegalArgumentException.class,
                "preScaleBias: expected heads without an L2 norm, got " + config.qkNorm()
                        + "; give bias(…) the same bias times the scale",
                () -> self.preScaleBias(biases));
        self.bias(biases);
    }

    @Test
    void refusals() {
        assertThrown(
                IllegalArgumentException.class,
                "softcap: expected a positive number, or 0 for none, got -1.0",
                () -> config().withSoftcap(-1));
        assertThrown(
                IllegalArgumentException.class,
                "plan: expected one, in which the sinks of the softmax are declared, got none; call new"
                        + " DotProductAttention(config, plan)",
                () -> new DotProductAttention(config().withSoftmaxType(SoftmaxType.LEARNABLE)));
        assertThrown(
                IllegalArgumentException.class,
                "alibi: expected slopes of 4 heads, got 3",
                () -> new DotProductAttention(config()).alibi(Alibi.ofSlopes(open.scope(), 1, 2, 3)));
        assertThrown(
                IllegalArgumentException.class,
                "slopes: expected finite numbers, got NaN at 1",
                () -> Alibi.ofSlopes(open.scope(), 1, Float.NaN));
        assertThrown(
                IllegalArgumentException.class,
                "slopes: expected one of each head, got none",
                () -> Alibi.ofSlopes(open.scope()));
        assertThrown(
                IllegalArgumentException.class, "heads: expected at least 1, got 0", () -> Alibi.of(open.scope(), 0));
        assertThrown(
                IllegalArgumentException.class,
                "heads: expected at most 65535, got 2147483647",
                () -> Alibi.of(open.scope(), Integer.MAX_VALUE));
        assertThrown(
                IllegalArgumentException.class,
                "slopes: expected at most 65535, got 65536",
                () -> Alibi.ofSlopes(open.scope(), new float[65_536]));
        assertThrown(
                IllegalArgumentException.class,
                "mask: expected BYTE[1 or B, 1 or h, S, S'], got BYTE[4, 4]",
                () -> Sequences.packed(open.scope(), 4).withScoreMask(mask(new byte[16], 4, 4)));
    }
}
