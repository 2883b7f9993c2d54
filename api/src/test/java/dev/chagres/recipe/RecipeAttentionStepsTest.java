package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Allocation;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.MultiheadAttention;
import dev.chagres.layer.NormConfig;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.te.QkvFormat;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of an attention in eight bits: what they enqueue, keep and allocate, and that graphs replay them. */
@Tag("L0")
@Tag("L1")
class RecipeAttentionStepsTest {
    private static final int TOKENS = 16;
    private static final int HIDDEN = 128;

    private static final class Model implements AutoCloseable {
        final Device device = Device.open();
        final Scope inputs = device.openScope();
        final Pass pass = Pass.training(device);
        final MultiheadAttention layer;
        final Parameters parameters;
        final Quantizers quantizers;
        final Sequences sequences;
        final Tensor x;
        final Tensor dy;

        Model(AttentionPrecision precision, Bias bias) {
            ModelPlan plan = new ModelPlan();
            layer = new MultiheadAttention(
                    NormConfig.layerNorm(HIDDEN),
                    AttentionConfig.of(1, HIDDEN, AttentionMask.causal()),
                    bias,
                    Initializer.normal(0.1f),
                    plan);
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
            quantizers =
                    Quantizers.allocate(parameters, DelayedScaling.standard().withAttention(precision));
            pass.autocast(quantizers);
            sequences = Sequences.dense(inputs, QkvFormat.BSHD, 1, TOKENS);
            x = drawn(1);
            dy = drawn(2);
        }

        private Tensor drawn(long key) {
            return drawn(key, 1);
        }

        private Tensor drawn(long key, float factor) {
            float[] values = new float[TOKENS * HIDDEN];
            for (int i = 0; i < values.length; i++) {
                values[i] = factor * (float) CounterRandom.normal(key, i);
            }
            Tensor tensor = inputs.tensor(DType.BFLOAT16, TOKENS, HIDDEN);
            tensor.set(device.stream(), values);
            return tensor;
        }

        Tensor step() {
            Tensor y = layer.forward(x, pass);
            layer.backward(dy, pass);
            return y;
        }

        void trainedStep() {
            pass.begin(sequences);
            step();
            parameters.nextStep();
        }

        @Override
        public void close() {
            pass.close();
            parameters.close();
            inputs.close();
            device.close();
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = AttentionPrecision.class,
            names = {"FP8_DPA", "FP8_MHA"})
    void aSteadyStepMakesNoGarbage(AttentionPrecision precision) {
        try (Model model = new Model(precision, Bias.PRESENT)) {
            model.trainedStep();
            model.trainedStep();
            long used = model.device.peakHeldBytes();
            Allocation.assertNone("a step of " + precision, model::trainedStep, 20);
            assertEquals(used, model.device.peakHeldBytes(), "device memory");
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = AttentionPrecision.class,
            names = {"FP8_DPA", "FP8_MHA"})
    void aGraphReplaysAStep(AttentionPrecision precision) {
        try (Model model = new Model(precision, Bias.PRESENT)) {
            model.trainedStep();
            model.pass.begin(model.sequences);
            float[] expected = model.step().toFloats(model.device.stream());
            model.pass.begin(model.sequences);
            Tensor[] y = new Tensor[1];
            try (Graph graph = model.device.stream().capture(() -> y[0] = model.step())) {
                y[0].zero(model.device.stream());
                graph.launch();
                assertArrayEquals(expected, y[0].toFloats(model.device.stream()));
            }
        }
    }

    /** Products that cast their results themselves record no smaller magnitude than an earlier micro-batch has found. */
    @ParameterizedTest
    @EnumSource(
            value = AttentionPrecision.class,
            names = {"FP8_DPA", "FP8_MHA"})
    void scalesFollowTheLargestMicroBatch(AttentionPrecision precision) {
        try (Model one = new Model(precision, Bias.ABSENT);
                Model two = new Model(precision, Bias.ABSENT)) {
            one.trainedStep();
            two.pass.begin(two.sequences);
            two.step();
            two.pass.begin(two.sequences);
            two.layer.forward(two.drawn(1, 0), two.pass);
            two.layer.backward(two.drawn(2, 0.125f), two.pass);
            two.parameters.nextStep();
            Map<String, Tensor> found = two.quantizers.state().tensors();
            int compared = 0;
            for (Map.Entry<String, Tensor> entry :
                    one.quantizers.state().tensors().entrySet()) {
                if (entry.getKey().endsWith(".scale")) {
                    float expected = entry.getValue().toFloats(one.device.stream())[0];
                    float scale = found.get(entry.getKey()).toFloats(two.device.stream())[0];
                    assertEquals(expected, scale, 1e-2 * expected, entry.getKey());
                    compared++;
                }
            }
            assertEquals(11, compared);
        }
    }

    private static long operations(AttentionPrecision precision, Bias bias) {
        try (Model model = new Model(precision, bias)) {
            model.trainedStep();
            model.pass.begin(model.sequences);
            model.step();
            model.pass.begin(model.sequences);
            try (Graph graph = model.device.stream().capture(() -> model.step())) {
                return graph.nodes();
            }
        }
    }

    /**
     * What 16 bits cast of the output and of two gradients, transposes of eight bits take the place of. A product that casts its result
     * itself, and attention, have calls behind them that record the largest magnitudes.
     */
    @Test
    void theProductsRoundAttentionCastNothing() {
        Assumptions.assumeTrue(Provider.current() == Provider.REFERENCE, "a graph of the reference has a node a call");
        for (Bias bias : Bias.values()) {
            long plain = operations(AttentionPrecision.HIGH_PRECISION, bias);
            assertEquals(
                    plain + 5,
                    operations(AttentionPrecision.FP8_MHA, bias),
                    "two products and three amaxes of attention, with bias " + bias);
            long cast = operations(AttentionPrecision.FP8_DPA, bias);
            assertEquals(
                    plain + 6,
                    cast,
                    "one, three amaxes, the cast of query, key and value, and back that of their gradients");
            assertTrue(cast > plain);
        }
    }
}
