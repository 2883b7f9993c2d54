package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What casts are measured, when, and that measuring changes nothing. */
@Tag("L0")
@Tag("L1")
class CastStatisticsTest {
    private static final int TOKENS = 75;
    private static final long SIZE = 32;
    private static final double LARGEST_ERROR = 0.13;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** A small MLP in training. */
    private static final class Training implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final LayerNormMlp layer;
        private final Device device = Device.open();
        private final Parameters parameters;
        private final Scope inputs = device.openScope();
        private final Pass pass = Pass.training(device);
        private final Quantizers quantizers;
        private final Tensor x;
        private final Tensor dy;
        private final Sequences sequences;

        Training(Recipe recipe, MlpConfig config) {
            layer = new LayerNormMlp(config, plan);
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 5);
            quantizers = Quantizers.allocate(parameters, recipe);
            x = inputs.tensor(DType.BFLOAT16, TOKENS, SIZE);
            dy = inputs.tensor(DType.BFLOAT16, TOKENS, SIZE);
            float[] values = new float[Math.toIntExact(x.count())];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(i * i);
            }
            x.set(device.stream(), values);
            dy.set(device.stream(), values);
            sequences = Sequences.packed(inputs, TOKENS);
            pass.autocast(quantizers);
        }

        /** Runs a micro-batch; the step does not end. */
        List<float[]> microBatch() {
            pass.begin(sequences);
            Tensor y = layer.forward(x, pass);
            List<float[]> results = new ArrayList<>();
            results.add(y.toFloats(device.stream()));
            results.add(layer.backward(dy, pass).toFloats(device.stream()));
            return results;
        }

        List<float[]> step() {
            List<float[]> results = microBatch();
            results.add(parameters.gradients().toFloats(device.stream()));
            parameters.nextStep();
            return results;
        }

        @Override
        public void close() {
            pass.close();
            inputs.close();
            parameters.close();
            device.close();
        }
    }

    private static MlpConfig gelu() {
        return MlpConfig.gelu(SIZE);
    }

    private static MlpConfig swiglu() {
        return gelu().withActivation(Activation.SWIGLU).withBias(Bias.ABSENT);
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.recipe.RecipeLinearConformance#recipes")
    void measuringChangesNoNumber(Recipe recipe) {
        for (MlpConfig config : List.of(gelu(), swiglu())) {
            try (Training plain = new Training(recipe, config);
                    Training measured = new Training(recipe, config)) {
                measured.quantizers.measureEvery(2);
                for (int step = 0; step < 3; step++) {
                    List<float[]> expected = plain.step();
                    List<float[]> actual = measured.step();
                    for (int i = 0; i < expected.size(); i++) {
                        assertArrayEquals(expected.get(i), actual.get(i));
                    }
                }
                assertEquals(List.of(), plain.quantizers.statistics());
                boolean gradients = recipe.backwardOverride() == BackwardOverride.NONE;
                List<CastStatistics> statistics = measured.quantizers.statistics();
                assertEquals(gradients ? 6 : 4, statistics.size(), statistics.toString());
                for (CastStatistics one : statistics) {
                    assertEquals(2, one.step(), one.site() + ": steps 0 and 2 are measured");
                    check(one, measured, recipe);
                }
            }
        }
    }

    private static void check(CastStatistics one, Training training, Recipe recipe) {
        QuantizerSite site = one.site();
        assertTrue(one.amax() > 0, one.toString());
        assertTrue(one.meanSquaredError() > 0, one.toString());
        assertTrue(one.meanSquaredError() <= Math.pow(LARGEST_ERROR * one.amax(), 2), one.toString());
        assertTrue(one.smallestScale() > 0 && one.smallestScale() <= one.largestScale(), one.toString());
        assertTrue(one.underflows() >= 0 && one.underflows() < 1, one.toString());
        assertTrue(one.overflows() >= 0 && one.overflows() < 0.01, one.toString());
        if (!(recipe instanceof Float8BlockScaling)) {
            assertEquals(one.smallestScale(), one.largestScale(), one.toString());
        }
        if (site.role() == Role.WEIGHT) {
            float largest = 0;
            for (float value : site.weight().weight().toFloats(training.device.stream())) {
                largest = Math.max(largest, Math.abs(value));
            }
            assertEquals(largest, one.amax(), one.toString());
        }
    }

    /** Its kernel computes the amax before it rounds; what is measured is the rounded gradient. */
    @Test
    void scaleOfAnActivationsGradientIsThatOfTheRoundedOne() {
        for (MlpConfig config : List.of(gelu(), swiglu())) {
            try (Training training = new Training(Float8CurrentScaling.standard(), config)) {
                training.quantizers.measureEvery(1);
                training.step();
                CastStatistics gradient = training.quantizers.statistics().stream()
                        .filter(one -> one.site().name().equals("fc1.output_gradient"))
                        .findFirst()
                        .orElseThrow();
                float largestOfE5m2 = 57344;
                assertEquals(largestOfE5m2 / gradient.amax(), gradient.largestScale());
            }
        }
    }

    @Test
    void numbersWithoutAScaleUnderflow() {
        try (Training training = new Training(DelayedScaling.standard(), gelu())) {
            training.dy.set(training.device.stream(), new float[Math.toIntExact(training.dy.count())]);
            training.quantizers.measureEvery(1);
            training.step();
            CastStatistics gradient = training.quantizers.statistics().stream()
                    .filter(one -> one.site().name().equals("fc2.output_gradient"))
                    .findFirst()
                    .orElseThrow();
            assertEquals(0, gradient.amax());
            assertEquals(0, gradient.underflows(), "0 stays 0");
            float[] tiny = new float[Math.toIntExact(training.dy.count())];
            Arrays.fill(tiny, 1e-9f);
            training.dy.set(training.device.stream(), tiny);
            training.step();
            CastStatistics vanished = training.quantizers.statistics().stream()
                    .filter(one -> one.site().name().equals("fc2.output_gradient"))
                    .findFirst()
                    .orElseThrow();
            assertTrue(vanished.underflows() > 0.9, "scales begin at 1: " + vanished);
            assertEquals(1, vanished.largestScale());
        }
    }

    @Test
    void theFirstMicroBatchIsMeasured() {
        try (Training training = new Training(DelayedScaling.standard(), gelu())) {
            training.quantizers.measureEvery(1);
            training.microBatch();
            List<CastStatistics> first = training.quantizers.statistics();
            float[] larger = training.x.toFloats(training.device.stream());
            for (int i = 0; i < larger.length; i++) {
                larger[i] *= 8;
            }
            training.x.set(training.device.stream(), larger);
            training.dy.set(training.device.stream(), larger);
            training.microBatch();
            assertEquals(first, training.quantizers.statistics());
            training.parameters.nextStep();
            training.microBatch();
            assertAllOf(1, training.quantizers.statistics());
            List<CastStatistics> second = training.quantizers.statistics();
            training.dy.zero(training.device.stream());
            training.pass.end();
            training.parameters.forgetGradients();
            training.microBatch();
            assertNotEquals(second, training.quantizers.statistics(), "an abandoned step is measured again");
        }
    }

    private static void assertAllOf(long step, List<CastStatistics> statistics) {
        assertEquals(6, statistics.size());
        statistics.forEach(one -> assertEquals(step, one.step(), one.toString()));
    }

    @Test
    void whenCastsAreMeasured() {
        try (Training training = new Training(Float8CurrentScaling.standard(), gelu())) {
            assertFalse(training.quantizers.measures(AmaxRecording.ON));
            training.quantizers.measureEvery(3);
            assertTrue(training.quantizers.measures(AmaxRecording.ON), "step 0");
            assertFalse(training.quantizers.measures(AmaxRecording.OFF), "evaluation");
            training.step();
            assertFalse(training.quantizers.measures(AmaxRecording.ON), "step 1");
            training.quantizers.measureEvery(1);
            training.pass.end();
            try (Graph graph = training.device.stream()
                    .capture(() ->
                            assertFalse(training.quantizers.measures(AmaxRecording.ON), "a graph would replay it"))) {
                assertEquals(0, graph.nodes());
            }
            training.quantizers.measureEvery(0);
            assertFalse(training.quantizers.measures(AmaxRecording.ON));
        }
    }

    @Test
    void refusals() {
        try (Training training = new Training(DelayedScaling.standard(), gelu())) {
            assertThrown(
                    IllegalArgumentException.class,
                    "steps: expected 0 or more, got -1",
                    () -> training.quantizers.measureEvery(-1));
            QuantizerSite site = training.parameters.quantizers().get(0);
            Tensor x = training.x;
            assertThrown(
                    IllegalStateException.class,
                    "measure: expected measureEvery before, which takes the memory",
                    () -> training.quantizers
                            .at(site)
                            .measure(
                                    x,
                                    training.quantizers
                                            .at(site)
                                            .empty(training.inputs, TOKENS, SIZE)
                                            .allocateRowwise(training.inputs),
                                    training.device.stream()));
            training.quantizers.close();
            assertThrown(
                    IllegalStateException.class,
                    "the quantizers of the pass are closed, by themselves or with their parameters; call pass.noAutocast, or"
                            + " pass.autocast with others",
                    training.quantizers::statistics);
        }
    }
}
