package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.TokenRows;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.SoftmaxType;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Layers whose attention is in eight bits against the same layers with attention in BFLOAT16, both with products in eight bits. */
@Tag("L0")
@Tag("L1")
class RecipeAttentionConformance {
    private static final int HIDDEN = 256;
    private static final int HEADS = 2;
    private static final int HEAD_DIM = 128;
    /** Query, key and value, softmax weights and output are rounded to three bits behind the first: 2.6 percent each. */
    private static final double CLOSE = 8e-2;
    /** Gradients pass three more roundings, to two bits behind the first: 5 percent each. */
    private static final double CLOSE_GRADIENTS = 1.8e-1;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** What stands between the product of query, key and value and attention. */
    enum Between {
        NOTHING,
        ROTARY,
        NORM,
        FEWER_KEYS
    }

    record Case(AttentionPrecision precision, Between between, AttentionMask mask, TokenRows tokens, Bias bias) {
        AttentionConfig attention() {
            AttentionConfig config = AttentionConfig.of(HEADS, HEAD_DIM, mask);
            return switch (between) {
                case NOTHING, ROTARY -> config;
                case NORM -> config.withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM));
                case FEWER_KEYS -> config.withKeyHeads(1);
            };
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        TokenRows full = TokenRows.padded(QkvFormat.BSHD, 64, 64, 64);
        TokenRows padded = TokenRows.padded(QkvFormat.SBHD, 40, 40, 17);
        for (AttentionPrecision precision : List.of(AttentionPrecision.FP8_DPA, AttentionPrecision.FP8_MHA)) {
            for (Between between : Between.values()) {
                cases.add(new Case(precision, between, AttentionMask.causal(), full, Bias.PRESENT));
            }
            cases.add(new Case(precision, Between.NOTHING, AttentionMask.none(), padded, Bias.PRESENT));
            cases.add(new Case(precision, Between.NOTHING, AttentionMask.none(), full, Bias.ABSENT));
            TokenRows odd = TokenRows.padded(QkvFormat.BSHD, 37, 37);
            cases.add(new Case(precision, Between.NOTHING, AttentionMask.causal(), odd, Bias.PRESENT));
        }
        return cases;
    }

    /** One model of a layer, and what its steps gave. */
    private static final class Run implements AutoCloseable {
        final Parameters parameters;
        final Layer layer;
        final Quantizers quantizers;
        final Map<String, float[]> results = new LinkedHashMap<>();

        Run(Case c, boolean whole, AttentionPrecision precision) {
            ModelPlan plan = new ModelPlan();
            Initializer initializer = Initializer.normal(0.06f);
            if (whole) {
                TransformerLayer made =
                        new TransformerLayer(TransformerLayerConfig.encoder(HIDDEN, c.attention()), plan);
                if (c.between == Between.ROTARY) {
                    made.rotate(RotaryEmbedding.of(open.scope(), 64, HEAD_DIM));
                }
                layer = made;
            } else {
                MultiheadAttention made =
                        new MultiheadAttention(NormConfig.layerNorm(HIDDEN), c.attention(), c.bias, initializer, plan);
                if (c.between == Between.ROTARY) {
                    made.rotate(RotaryEmbedding.of(open.scope(), 64, HEAD_DIM));
                }
                layer = made;
            }
            parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 7);
            quantizers = Quantizers.allocate(
                    parameters,
                    DelayedScaling.standard().withAttention(precision).withAmaxHistoryLength(4));
        }

        /** Trains a step; notes its output and gradients. */
        void step(Layer of, Case c, float[] x, float[] dy, Pass pass) {
            pass.autocast(quantizers);
            pass.begin(c.tokens.sequences(open.scope()));
            long rows = x.length / HIDDEN;
            results.clear();
            results.put("y", open.read(of.forward(tensor(rows, x), pass)));
            results.put("dx", open.read(of.backward(tensor(rows, dy), pass)));
            for (Parameter parameter : parameters.all()) {
                results.put(parameter.name(), open.read(parameter.gradient()));
            }
            pass.noAutocast();
            parameters.nextStep();
        }

        @Override
        public void close() {
            parameters.close();
        }
    }

    private static Tensor tensor(long rows, float[] values) {
        double[] copied = new double[values.length];
        Arrays.setAll(copied, i -> values[i]);
        return open.tensor(DType.BFLOAT16, copied, rows, HIDDEN);
    }

    /** Normal numbers, 0 in rows of padding. */
    private static float[] draw(TokenRows tokens) {
        int rows = tokens.padded() * tokens.lengths().size();
        float[] values = new float[rows * HIDDEN];
        double[] drawn = open.normal(DType.BFLOAT16, values.length, 1);
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) drawn[i];
        }
        for (int row : tokens.paddingRows()) {
            Arrays.fill(values, row * HIDDEN, (row + 1) * HIDDEN, 0);
        }
        return values;
    }

    private static void compare(Case c, Run expected, Run found) {
        expected.results.forEach((name, values) -> {
            float[] other = found.results.get(name);
            double difference = norm(values, other) / norm(values, null);
            double limit = name.equals("y") ? CLOSE : CLOSE_GRADIENTS;
            assertTrue(difference <= limit, () -> c + " " + name + ": off by " + difference + " of its norm");
        });
    }

    private static double norm(float[] values, float[] other) {
        double sum = 0;
        for (int i = 0; i < values.length; i++) {
            double difference = values[i] - (other == null ? 0 : other[i]);
            sum += difference * difference;
        }
        return Math.sqrt(sum);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void attentionAgainstSixteenBits(Case c) {
        against(c, false);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void transformerLayerAgainstSixteenBits(Case c) {
        if (c.bias == Bias.PRESENT) {
            against(c, true);
        }
    }

    private static void against(Case c, boolean whole) {
        try (Run plain = new Run(c, whole, AttentionPrecision.HIGH_PRECISION);
                Run scaled = new Run(c, whole, c.precision)) {
            float[] x = draw(c.tokens);
            float[] dy = draw(c.tokens);
            for (int step = 0; step < 2; step++) { // The first finds scales.
                plain.step(plain.layer, c, x, dy, open.pass());
                scaled.step(scaled.layer, c, x, dy, open.pass());
            }
            compare(c, plain, scaled);
            boolean fell = Arrays.equals(plain.results.get("y"), scaled.results.get("y"));
            boolean may = Provider.current() == Provider.CUDA && c.tokens.padded() % 64 != 0;
            assertFalse(fell && !may, () -> c + ": attention was in 16 bits");
        }
    }

    private static final Case USUAL = new Case(
            AttentionPrecision.FP8_MHA,
            Between.NOTHING,
            AttentionMask.causal(),
            TokenRows.padded(QkvFormat.BSHD, 64, 64, 64),
            Bias.PRESENT);

    /** Scales and histories that were loaded give the same bits as those that were saved. */
    @Test
    void stateGoesOn() {
        float[] x = draw(USUAL.tokens);
        float[] dy = draw(USUAL.tokens);
        try (Run first = new Run(USUAL, false, USUAL.precision);
                Run second = new Run(USUAL, false, USUAL.precision)) {
            first.step(first.layer, USUAL, x, dy, open.pass());
            Map<String, Tensor> saved = first.quantizers.state().tensors();
            Map<String, Tensor> loaded = second.quantizers.state().tensors();
            assertEquals(saved.keySet(), loaded.keySet());
            for (String place : List.of("qkv", "output", "output_gradient", "score_gradient", "qkv_gradient")) {
                assertTrue(saved.containsKey("core_attention." + place + ".scale"), place);
                float scale = open.read(saved.get("core_attention." + place + ".scale"))[0];
                assertTrue(scale != 1 && scale > 0, () -> place + " has found no scale: " + scale);
            }
            saved.forEach((name, tensor) -> loaded.get(name).copyFrom(open.stream(), tensor));
            second.quantizers.state().loaded();
            first.step(first.layer, USUAL, x, dy, open.pass());
            second.step(second.layer, USUAL, x, dy, open.pass());
            assertArrayEquals(first.results.get("y"), second.results.get("y"));
        }
    }

    @Test
    void sixteenBitsHaveNoPlacesOfAttention() {
        try (Run plain = new Run(USUAL, false, AttentionPrecision.HIGH_PRECISION)) {
            assertTrue(plain.quantizers.state().tensors().keySet().stream()
                    .noneMatch(name -> name.contains("core_attention")));
        }
    }

    /** Evaluation computes as training does, and records nothing. */
    @Test
    void evaluationRecordsNothing() {
        float[] x = draw(USUAL.tokens);
        try (Run run = new Run(USUAL, false, USUAL.precision);
                Pass evaluation = Pass.evaluation(open.device())) {
            run.step(run.layer, USUAL, x, draw(USUAL.tokens), open.pass());
            Map<String, float[]> before = new LinkedHashMap<>();
            run.quantizers.state().tensors().forEach((name, tensor) -> before.put(name, open.read(tensor)));
            evaluation.autocast(run.quantizers);
            evaluation.begin(USUAL.tokens.sequences(open.scope()));
            float[] y = open.read(run.layer.forward(tensor(x.length / HIDDEN, x), evaluation));
            run.quantizers
                    .state()
                    .tensors()
                    .forEach((name, tensor) -> assertArrayEquals(before.get(name), open.read(tensor), name));
            run.step(run.layer, USUAL, x, draw(USUAL.tokens), open.pass());
            assertArrayEquals(run.results.get("y"), y);
        }
    }

    @Test
    void recomputedLayersHaveTheSameScales() {
        float[] x = draw(USUAL.tokens);
        float[] dy = draw(USUAL.tokens);
        try (Run plain = new Run(USUAL, false, USUAL.precision);
                Run again = new Run(USUAL, false, USUAL.precision)) {
            Layer recomputed = new Recomputed(again.layer);
            for (int step = 0; step < 3; step++) {
                plain.step(plain.layer, USUAL, x, dy, open.pass());
                again.step(recomputed, USUAL, x, dy, open.pass());
            }
            assertArrayEquals(plain.results.get("y"), again.results.get("y"));
            plain.results.forEach((name, values) -> {
                double difference = norm(values, again.results.get(name)) / norm(values, null);
                assertTrue(difference < 1e-2, () -> name + ": off by " + difference + " of its norm");
            });
        }
    }

    /** Backward would read other scales than forward has written by. */
    @Test
    void backwardBelongsToTheStepOfForward() {
        float[] x = draw(USUAL.tokens);
        try (Run run = new Run(USUAL, false, USUAL.precision)) {
            Pass pass = open.pass();
            pass.autocast(run.quantizers);
            pass.begin(USUAL.tokens.sequences(open.scope()));
            run.layer.forward(tensor(x.length / HIDDEN, x), pass);
            run.parameters.nextStep();
            assertThrown(
                    IllegalStateException.class,
                    "the scales of attention in eight bits have changed since forward: the next step has begun, or a state was"
                            + " loaded; call backward before that",
                    () -> run.layer.backward(tensor(x.length / HIDDEN, x), pass));
            pass.noAutocast();
        }
    }

    @Test
    void whatCalibrationRecords() {
        float[] x = draw(USUAL.tokens);
        try (Run run = new Run(USUAL, false, USUAL.precision)) {
            Pass pass = open.pass();
            pass.calibrate(run.quantizers);
            pass.begin(USUAL.tokens.sequences(open.scope()));
            run.layer.forward(tensor(x.length / HIDDEN, x), pass);
            run.layer.backward(tensor(x.length / HIDDEN, x), pass);
            pass.noAutocast();
            run.parameters.nextStep();
            Map<String, Tensor> state = run.quantizers.state().tensors();
            for (String place : List.of("qkv", "output", "output_gradient", "qkv_gradient")) {
                assertTrue(open.read(state.get("core_attention." + place + ".scale"))[0] != 1, place);
            }
        }
    }

    private static String explained(AttentionConfig config, Sequences sequences, Set<String> kept) {
        ModelPlan plan = new ModelPlan();
        MultiheadAttention layer = new MultiheadAttention(
                NormConfig.layerNorm(HIDDEN), config, Initializer.normal(0.1f), plan.group("attention"));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 7)) {
            Pass pass = open.pass();
            pass.autocast(Quantizers.allocate(
                    parameters, DelayedScaling.standard().withAttention(AttentionPrecision.FP8_DPA), kept));
            pass.begin(sequences);
            String text = layer.explain(open.unwritten(DType.BFLOAT16, sequences.tokens(), HIDDEN), pass);
            pass.noAutocast();
            return text;
        }
    }

    private static void explains(String expected, AttentionConfig config) {
        String text = explained(config, Sequences.dense(open.scope(), QkvFormat.BSHD, 2, 64), Set.of());
        assertTrue(text.contains(expected), () -> expected + " expected in " + text);
    }

    @Test
    void whatStaysInSixteenBitsSaysWhy() {
        AttentionConfig config = AttentionConfig.of(HEADS, HEAD_DIM, AttentionMask.causal());
        String not = "; not in eight bits by FP8_DPA of DelayedScaling, for ";
        explains("; in eight bits by FP8_DPA of DelayedScaling", config);
        explains(
                not + "cuDNN has gradients in eight bits only for heads of 128, not of 64",
                AttentionConfig.of(4, 64, AttentionMask.causal()));
        explains(not + "attention weights are dropped", config.withDropout(Dropout.of(0.1f)));
        explains(
                not + "cuDNN has a bottom-right mask in eight bits only for compute capability 10.0",
                config.withMask(AttentionMask.causalBottomRight()));
        explains(
                not + "cuDNN has a window in eight bits only from 9.21 on",
                config.withMask(AttentionMask.causal().withWindow(8, 0)));
        explains(not + "TE has no soft cap of the scores", config.withSoftcap(30));
        AttentionConfig sunk = config.withSoftmaxType(SoftmaxType.OFF_BY_ONE);
        explains(not + "cuDNN has a softmax with an extra term in eight bits only from 9.21 on", sunk);
        explains("te_fused_attn_bwd_v2", sunk);
        String packed = explained(config, Sequences.packed(open.scope(), 64, 64), Set.of());
        assertTrue(packed.contains(not + "cuDNN has packed sequences in eight bits only from 9.23 on"), packed);
    }

    @Test
    void otherRecipesRefuse() {
        assertThrown(
                IllegalArgumentException.class,
                "attention: expected HIGH_PRECISION, for Float8CurrentScaling computes attention in eight bits only"
                        + " on compute capability 10.0 (Blackwell), got FP8_DPA; use DelayedScaling",
                () -> Float8CurrentScaling.standard().withAttention(AttentionPrecision.FP8_DPA));
        assertThrown(
                IllegalArgumentException.class,
                "attention: expected HIGH_PRECISION, for Float8BlockScaling computes attention in eight bits only on"
                        + " compute capability 10.0 (Blackwell), got FP8_MHA; use DelayedScaling",
                () -> Float8BlockScaling.standard().withAttention(AttentionPrecision.FP8_MHA));
        assertEquals(
                Float8BlockScaling.standard(),
                Float8BlockScaling.standard().withAttention(AttentionPrecision.HIGH_PRECISION));
        assertThrown(
                IllegalArgumentException.class,
                "role: expected INPUT, WEIGHT or GRADIENT, for attention keeps the model's type, got ATTENTION",
                () -> Float8CurrentScaling.standard()
                        .withQuantization(QuantizerSite.Role.ATTENTION, QuantizationConfig.standard()));
    }
}
