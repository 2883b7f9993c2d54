package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.Allocation;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.SmallModel;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Graphs of micro-batches without the optimizer's step, and of steps without micro-batches: each launch says what it has written. */
@Tag("L0")
@Tag("L1")
class CapturedGradientsTest {
    private static final float RATE = 1e-2f;
    private static final String WRITTEN =
            "launch: expected no gradient of embedding.weight in this step, as at the capture,"
                    + " got one that the graph would overwrite; take the optimizer's step or call forgetGradients() before the"
                    + " launch; a graph that adds is captured after the step's first backward call";
    private static final String UNWRITTEN = "launch: expected a gradient of embedding.weight in this step, as at the"
            + " capture, got none, so that the graph would use that of an earlier step; call backward, or launch a graph"
            + " that does, before the launch";

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private enum Way {
        ENQUEUED,
        REPLAYED
    }

    /** A model with tied weights and dropout, and the three graphs of its steps. */
    private final class Training implements AutoCloseable {
        private final SmallModel model;
        private final Pass pass = Pass.training(device);
        private final AdamW optimizer;
        private final GradientNorm norm;
        private final Tensor ids;
        private final Tensor labels;
        private final Sequences sequences;
        private final List<float[]> read = new ArrayList<>();

        Training(DType dtype, Consumer<ModelPlan> frozen) {
            model = new SmallModel(device, dtype, 0.2f, UnaryOperator.identity(), frozen);
            optimizer = new AdamW(model.parameters, AdamW.Config.standard());
            norm = new GradientNorm(model.parameters, 1);
            int[][] batch = SmallModel.batch(3, 4, 3);
            ids = model.ints(model.inputs, batch[0]);
            labels = model.ints(model.inputs, batch[1]);
            sequences = Sequences.packed(model.inputs, 4, 3);
        }

        void microBatch() {
            pass.begin(sequences);
            model.crossEntropy.forward(model.logits(pass, ids), labels, pass);
            model.backward(pass);
        }

        void step() {
            norm.compute();
            optimizer.step(RATE, norm);
        }

        Graph capture(Runnable body) {
            pass.end();
            return device.stream().capture(body);
        }

        /**
         * Runs a call for each letter: F a micro-batch, G one by a graph of a step's first, H one by a graph of a later one, S a step, T
         * one by a graph, O forgets the gradients.
         */
        void run(Way way, String script) {
            microBatch();
            step();
            if (way == Way.ENQUEUED) {
                microBatch();
                model.parameters.forgetGradients();
                script.chars().forEach(letter -> enqueue(letter));
                return;
            }
            try (Graph first = capture(this::microBatch)) {
                microBatch();
                try (Graph later = capture(this::microBatch);
                        Graph step = capture(this::step)) {
                    model.parameters.forgetGradients();
                    for (char letter : script.toCharArray()) {
                        switch (letter) {
                            case 'G' -> first.launch();
                            case 'H' -> later.launch();
                            case 'T' -> {
                                step.launch();
                                read();
                            }
                            default -> enqueue(letter);
                        }
                    }
                }
            }
        }

        private void enqueue(int letter) {
            switch (letter) {
                case 'O' -> model.parameters.forgetGradients();
                case 'S', 'T' -> {
                    step();
                    read();
                }
                default -> microBatch();
            }
        }

        private void read() {
            read.add(norm.norm().toFloats(device.stream()));
            read.add(model.parameters.weights().toFloats(device.stream()));
            read.add(new float[] {optimizer.step(), model.parameters.step()});
        }

        @Override
        public void close() {
            pass.close();
            optimizer.close();
            model.close();
        }
    }

    private List<float[]> numbers(
            Way way, String script, DType dtype, Consumer<ModelPlan> frozen, Consumer<Training> prepare) {
        try (Training training = new Training(dtype, frozen)) {
            prepare.accept(training);
            training.run(way, script);
            return training.read;
        }
    }

    private void same(String script, DType dtype, Consumer<ModelPlan> frozen, Consumer<Training> prepare) {
        List<float[]> expected = numbers(Way.ENQUEUED, script, dtype, frozen, prepare);
        List<float[]> actual = numbers(Way.REPLAYED, script, dtype, frozen, prepare);
        assertEquals(expected.size(), actual.size());
        for (int i = 0; i < expected.size(); i++) {
            assertTrue(expected.get(i)[0] != 0, script);
            assertArrayEquals(expected.get(i), actual.get(i), script + ", number " + i);
        }
    }

    private static String refusal(Runnable call) {
        return assertThrows(IllegalStateException.class, call::run).getMessage();
    }

    @ParameterizedTest
    @ValueSource(strings = {"GSGSGS", "GHHSGHSFS", "GFSFHS", "GOGSOFHS", "FTGTFHTGHT"})
    void graphsOfPartsOfAStepAreTheSameStep(String script) {
        same(script, DType.FLOAT32, plan -> {}, training -> {});
    }

    @Test
    void withFrozenParameters() {
        same(
                "GHTGSFHT",
                DType.BFLOAT16,
                plan -> plan.parameters().stream()
                        .filter(parameter -> parameter.name().startsWith("layers.1")
                                || parameter.name().contains("norm"))
                        .forEach(Parameter::freeze),
                training -> {});
    }

    @Test
    void quantized() {
        same(
                "GHTGSFHT",
                DType.BFLOAT16,
                plan -> {},
                training -> training.pass.autocast(
                        Quantizers.allocate(training.model.parameters, DelayedScaling.standard())));
    }

    @Test
    void launchesThatWouldOverwriteOrAddToNothingAreRefused() {
        for (String script : new String[] {"GG", "FG", "GSFG", "GHG"}) {
            assertEquals(WRITTEN, refused(script), script);
        }
        for (String script : new String[] {"H", "GSH", "FTH", "GOH", "T", "GTT", "GSHS"}) {
            assertEquals(UNWRITTEN, refused(script), script);
        }
    }

    private String refused(String script) {
        try (Training training = new Training(DType.FLOAT32, plan -> {})) {
            return refusal(() -> training.run(Way.REPLAYED, script));
        }
    }

    /** A capture runs nothing: what was written before it counts, and what it has recorded does not. */
    @Test
    void aCaptureLeavesTheGradientsAsTheyWere() {
        List<float[]> expected = numbers(Way.ENQUEUED, "FFSFS", DType.FLOAT32, plan -> {}, training -> {});
        try (Training training = new Training(DType.FLOAT32, plan -> {})) {
            training.run(Way.ENQUEUED, "F");
            try (Graph later = training.capture(training::microBatch);
                    Graph whole = training.capture(() -> {
                        training.microBatch();
                        training.step();
                    })) {
                assertThrows(
                        IllegalArgumentException.class,
                        () -> training.capture(() -> {
                            training.norm.compute();
                            throw new IllegalArgumentException("too late");
                        }));
                later.launch();
                training.enqueue('S');
                assertEquals(UNWRITTEN, refusal(whole::launch));
                assertEquals(2, training.optimizer.step());
                training.enqueue('F');
                training.enqueue('S');
            }
            for (int i = 0; i < expected.size(); i++) {
                assertArrayEquals(expected.get(i), training.read.get(i), "number " + i);
            }
        }
    }

    /** As where it is enqueued, a step takes a norm that was computed for it. */
    @Test
    void aStepAloneNeedsItsNorm() {
        String stale = "norm: compute() was not called since the last step; call it after the backward pass";
        try (Training training = new Training(DType.FLOAT32, plan -> {})) {
            training.run(Way.ENQUEUED, "F");
            training.norm.compute();
            try (Graph step = training.capture(() -> training.optimizer.step(RATE, training.norm));
                    Graph unmeasured = training.capture(() -> training.optimizer.step(RATE));
                    Graph norm = training.capture(training.norm::compute)) {
                step.launch();
                assertEquals(stale, refusal(step::launch));
                assertEquals(UNWRITTEN, refusal(unmeasured::launch));
                assertEquals(UNWRITTEN, refusal(norm::launch));
                training.microBatch();
                assertEquals(stale, refusal(step::launch));
                norm.launch();
                step.launch();
                training.microBatch();
                training.norm.compute();
                step.launch();
                assertEquals(stale, refusal(() -> training.optimizer.step(RATE, training.norm)));
                assertEquals(4, training.optimizer.step());
            }
        }
    }

    /** What is summed over ranks the host knows of steps that are whole. */
    @Test
    void partsOfAStepOverRanksAreRefused() {
        try (Training training = new Training(DType.FLOAT32, plan -> {});
                Communicator one = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard())) {
            training.run(Way.ENQUEUED, "");
            training.pass.end();
            DataParallel strategy = DataParallel.of(training.model.parameters, one);
            strategy.follow(training.pass);
            Runnable whole = () -> {
                training.microBatch();
                strategy.sumGradients();
                training.step();
            };
            whole.run();
            try (Graph part = training.capture(training::microBatch);
                    Graph step = training.capture(whole)) {
                assertEquals(
                        "launch: expected a whole step in the graph, since its gradients are summed over ranks, got a part"
                                + " of one; capture all from the step's first backward call to the optimizer's step",
                        refusal(part::launch));
                step.launch();
                step.launch();
                assertEquals(4, training.optimizer.step());
            }
            strategy.close();
        }
    }

    @Test
    void whatABodyForgetsIsForgottenAtTheCapture() {
        try (Training training = new Training(DType.FLOAT32, plan -> {})) {
            training.run(Way.ENQUEUED, "F");
            try (Graph graph = training.capture(() -> {
                training.model.parameters.forgetGradients();
                training.microBatch();
            })) {
                graph.launch();
                assertEquals(WRITTEN, refusal(graph::launch));
            }
        }
    }

    @Test
    void launchesMakeNoGarbage() {
        try (Training training = new Training(DType.FLOAT32, plan -> {})) {
            training.run(Way.ENQUEUED, "");
            try (Graph graph = training.capture(training::microBatch)) {
                Allocation.assertNone(
                        "a launch",
                        () -> {
                            graph.launch();
                            training.model.parameters.forgetGradients();
                        },
                        20);
            }
        }
    }
}
