package dev.chagres;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Training steps in a graph: the same bits, counted at each launch. */
@Tag("L0")
@Tag("L1")
class TrainingGraphTest {
    private static final int HIDDEN = 32;
    private static final int TOKENS = 48;

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private static String refusal(Runnable call) {
        return assertThrows(IllegalStateException.class, call::run).getMessage();
    }

    @Test
    void aLaunchThatFailsCountsNothing() {
        try (Training first = new Training();
                Training second = new Training()) {
            Runnable work = () -> {
                first.step(0.01f);
                second.step(0.01f);
            };
            work.run();
            first.pass.end();
            second.pass.end();
            try (Graph graph = device.stream().capture(work)) {
                graph.launch();
                float[] weights = first.weights();
                second.optimizer.close();
                assertEquals(
                        "AdamW: closed since the capture, so that nothing writes the learning rate and step number;"
                                + " launch the"
                                + " graph before AdamW.close(), or capture a step of another optimizer",
                        refusal(graph::launch));
                assertEquals(2, first.optimizer.step());
                assertEquals(2, first.parameters.step());
                assertEquals(2, second.parameters.step());
                assertArrayEquals(weights, first.weights());
            }
            first.pass.end();
            try (Graph graph = device.stream().capture(() -> first.step(0.01f))) {
                first.pass.close();
                assertEquals(
                        "launch: the pass was closed since the capture; launch the graph before Pass.close(), or capture"
                                + " again with another pass",
                        refusal(graph::launch));
                assertEquals(2, first.optimizer.step());
                assertEquals(2, first.parameters.step());
            }
        }
    }

    /** A layer's training, with dropout. */
    private final class Training implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final TransformerLayer layer;
        private final Parameters parameters;
        private final GradientNorm norm;
        private final AdamW optimizer;
        private final Pass pass = Pass.training(device);
        private final Scope inputs = device.openScope();
        private final Tensor x = inputs.tensor(DType.BFLOAT16, TOKENS, HIDDEN);
        private final Sequences sequences = Sequences.packed(inputs, 20, 17, 11);

        Training() {
            AttentionConfig attention = AttentionConfig.of(2, 16, AttentionMask.none());
            layer = new TransformerLayer(
                    TransformerLayerConfig.encoder(HIDDEN, attention).withHiddenDropout(Dropout.of(0.1f)), plan);
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
            norm = new GradientNorm(parameters, 1);
            optimizer = new AdamW(parameters, AdamW.Config.standard());
            float[] values = new float[TOKENS * HIDDEN];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(i);
            }
            x.set(device.stream(), values);
        }

        void step(float rate) {
            pass.begin(sequences);
            layer.backward(layer.forward(x, pass), pass);
            norm.compute();
            optimizer.step(rate, norm);
        }

        float[] weights() {
            return parameters.weights().toFloats(device.stream());
        }

        @Override
        public void close() {
            pass.close();
            optimizer.close();
            parameters.close();
            inputs.close();
        }
    }

    private void sameBits(Consumer<Training> prepare) {
        float[] rates = {0.01f, 0.02f, 0.005f, 0.03f, 0.01f, 0.002f};
        float[] expected;
        try (Training plain = new Training()) {
            prepare.accept(plain);
            for (float rate : rates) {
                plain.step(rate);
            }
            expected = plain.weights();
            assertEquals(rates.length, plain.optimizer.step());
        }
        try (Training replayed = new Training()) {
            prepare.accept(replayed);
            replayed.step(rates[0]);
            replayed.pass.end();
            try (Graph graph = device.stream().capture(() -> replayed.step(rates[1]))) {
                assertEquals(1, replayed.optimizer.step(), "recorded, not counted");
                for (int i = 1; i < rates.length; i++) {
                    if (i == 3) {
                        replayed.step(rates[i]); // one by one, between replays
                        continue;
                    }
                    replayed.optimizer.rate(rates[i]);
                    graph.launch();
                }
            }
            assertEquals(rates.length, replayed.optimizer.step());
            assertEquals(rates.length, replayed.parameters.step());
            assertArrayEquals(expected, replayed.weights());
        }
    }

    @Test
    void aReplayedStepIsTheSameStep() {
        sameBits(training -> {});
    }

    @Test
    void aReplayedStepInEightBitsIsTheSameStep() {
        sameBits(training ->
                training.pass.autocast(Quantizers.allocate(training.parameters, DelayedScaling.standard())));
    }

    @Test
    void aCaptureThatFailsLeavesCountersAndGradients() {
        float[] expected;
        try (Training plain = new Training()) {
            plain.step(0.01f);
            plain.step(0.01f);
            expected = plain.weights();
        }
        try (Training failing = new Training()) {
            failing.step(0.01f);
            failing.pass.end();
            assertThrows(
                    IllegalArgumentException.class,
                    () -> device.stream().capture(() -> {
                        failing.step(0.01f);
                        throw new IllegalArgumentException("too late");
                    }));
            failing.step(0.01f);
            assertArrayEquals(expected, failing.weights());
        }
    }

    @Test
    void hostNumbersAreRefusedInACapture() {
        try (Training training = new Training()) {
            assertTrue(refusal(() -> device.stream().capture(() -> training.step(0.1f)))
                    .startsWith("memory: "));
            training.step(0.1f);
            training.pass.end();
            assertEquals(
                    "seed: a graph would draw the same numbers at each launch; call it before Stream.capture: each"
                            + " begin then advances the offset",
                    refusal(() -> device.stream().capture(() -> training.pass.seed(1, 2, 3))));
            assertEquals(
                    "nextStep: expected at most one step of the parameters in a graph, got another; capture each step"
                            + " separately, or launch one graph twice",
                    refusal(() -> device.stream().capture(() -> {
                        training.step(0.1f);
                        training.step(0.1f);
                    })));
            assertEquals(
                    "rate: expected a number of at least 0, got NaN",
                    assertThrows(IllegalArgumentException.class, () -> training.optimizer.rate(Float.NaN))
                            .getMessage());
        }
    }
}
