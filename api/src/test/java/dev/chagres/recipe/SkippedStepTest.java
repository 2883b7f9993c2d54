package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LossScaler;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A step that loss scaling skips: scales and histories stay as they were, as weights and moments do. */
@Tag("L0")
@Tag("L1")
class SkippedStepTest {
    private static final int TOKENS = 16;
    private static final int SIZE = 32;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** One product in eight bits, and a head in FP16. */
    private static final class Training implements AutoCloseable {
        private final Linear body;
        private final Linear head;
        private final Parameters parameters;
        private final Quantizers quantizers;
        private final LossScaler scaler;
        private final GradientNorm norm;
        private final AdamW adam;
        private final Pass pass;
        private final Tensor input = open.scope().tensor(DType.FLOAT16, TOKENS, SIZE);
        private final Tensor gradient = open.scope().tensor(DType.FLOAT16, TOKENS, SIZE);

        Training(int historyLength) {
            ModelPlan plan = new ModelPlan();
            body = new Linear(SIZE, SIZE, Initializer.normal(0.2f), plan.group("body"));
            head = new Linear(SIZE, SIZE, Initializer.normal(0.2f), plan.group("head"));
            parameters = Parameters.allocate(open.device(), plan, DType.FLOAT16, 3);
            quantizers =
                    Quantizers.allocate(parameters, DelayedScaling.standard().withAmaxHistoryLength(historyLength));
            scaler = new LossScaler(parameters, LossScaler.Config.standard().withInitialScale(64));
            norm = new GradientNorm(scaler, 1);
            adam = new AdamW(parameters, AdamW.Config.standard());
            pass = Pass.training(open.device());
            pass.autocast(quantizers);
        }

        /** Writes what the step {@code number} reads; {@code spoiled} is one number of its gradient. */
        void write(int number, float spoiled) {
            float[] values = new float[TOKENS * SIZE];
            float[] gradients = new float[values.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) CounterRandom.normal(number, i);
                gradients[i] = (float) CounterRandom.normal(number + 1000, i);
            }
            gradients[9] = spoiled;
            input.set(open.stream(), values);
            gradient.set(open.stream(), gradients);
        }

        void enqueue() {
            pass.begin();
            head.forward(body.forward(input, pass), pass);
            body.backward(head.backward(gradient, pass), pass);
            norm.compute();
            adam.step(1e-2f, norm);
        }

        void step(int number, float spoiled) {
            write(number, spoiled);
            enqueue();
        }

        /** All but the loss scale, which a skipped step changes. */
        Map<String, float[]> read() {
            Map<String, float[]> values = new LinkedHashMap<>();
            State.of(parameters.state(), quantizers.state(), adam.state())
                    .tensors()
                    .forEach((name, tensor) -> values.put(name, open.read(tensor)));
            return values;
        }

        @Override
        public void close() {
            pass.close();
            adam.close();
            parameters.close();
        }
    }

    private static void assertSame(Map<String, float[]> expected, Map<String, float[]> actual) {
        assertEquals(expected.keySet(), actual.keySet());
        expected.forEach((name, values) -> assertArrayEquals(values, actual.get(name), name));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 5})
    void scalesAndHistoriesStay(int historyLength) {
        try (Training spoiled = new Training(historyLength);
                Training plain = new Training(historyLength)) {
            spoiled.step(1, 1);
            Map<String, float[]> before = spoiled.read();
            spoiled.step(2, Float.POSITIVE_INFINITY);
            assertEquals(1, spoiled.scaler.skippedSteps());
            assertSame(before, spoiled.read());
            spoiled.step(3, Float.NaN);
            assertEquals(2, spoiled.scaler.skippedSteps());
            assertSame(before, spoiled.read());
            // Another loss scale would round otherwise.
            spoiled.scaler.scale().set(open.stream(), 64f);
            plain.step(1, 1);
            for (int number = 4; number < 10; number++) {
                spoiled.step(number, 1);
                plain.step(number, 1);
            }
            assertSame(plain.read(), spoiled.read());
        }
    }

    /** The check above could not fail if a step that is taken changed nothing. */
    @Test
    void aStepThatIsTakenChangesThem() {
        try (Training training = new Training(3)) {
            training.step(1, 1);
            Map<String, float[]> before = training.read();
            training.step(2, 1);
            training.read().forEach((name, values) -> {
                if (name.contains("amax_history") || name.endsWith("weight")) {
                    assertFalse(Arrays.equals(before.get(name), values), name);
                }
            });
            assertTrue(before.containsKey("quantizers.backward.float8_e5m2.amax_history"), before.keySet() + "");
        }
    }

    /** The graph decides at each launch, although it was captured in a step that was taken. */
    @Test
    void aCapturedStepDecidesAtEachLaunch() {
        try (Training captured = new Training(4);
                Training enqueued = new Training(4)) {
            captured.step(1, 1);
            enqueued.step(1, 1);
            captured.pass.end();
            try (Graph graph = open.stream().capture(captured::enqueue)) {
                float[] spoils = {1, Float.POSITIVE_INFINITY, 1, 1, Float.NaN, Float.NaN, 1};
                for (int i = 0; i < spoils.length; i++) {
                    captured.write(i + 2, spoils[i]);
                    graph.launch();
                    enqueued.step(i + 2, spoils[i]);
                    assertSame(enqueued.read(), captured.read());
                }
            }
            assertEquals(3, captured.scaler.skippedSteps());
        }
    }

    /** Without loss scaling nothing says that a step was skipped: scales follow it, as Transformer Engine's do. */
    @Test
    void withoutLossScalingScalesFollow() {
        try (Training training = new Training(3)) {
            assertNull(training.parameters.skip());
            training.step(1, 1);
            Map<String, float[]> before = training.read();
            training.pass.begin();
            training.body.forward(training.input, training.pass);
            training.parameters.nextStep();
            String history = "quantizers.forward.float8_e4m3.amax_history";
            assertFalse(Arrays.equals(before.get(history), training.read().get(history)));
        }
    }
}
