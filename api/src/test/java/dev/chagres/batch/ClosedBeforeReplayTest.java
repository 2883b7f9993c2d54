package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.bindings.CaptureException;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A replay writes what its step wrote: it is refused once that was closed, and nothing of it runs. */
@Tag("L0")
@Tag("L1")
class ClosedBeforeReplayTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32);
    private static final int VOCABULARY = 1024;
    private static final int HIDDEN = 32;

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    /** A step without optimizer and dropout: neither could tell that something was closed. */
    private final class Training implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Embedding embedding =
                new Embedding(VOCABULARY, HIDDEN, Initializer.normal(1), plan.group("embedding"));
        private final Linear middle = new Linear(HIDDEN, HIDDEN, Initializer.normal(0.02f), plan.group("middle"));
        private final Linear head = new Linear(HIDDEN, VOCABULARY, Initializer.normal(0.02f), plan.group("head"));
        private final CrossEntropy crossEntropy = new CrossEntropy(VOCABULARY);
        private final Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42);
        private final Pass pass = Pass.training(device);
        private final UploadRing uploads = UploadRing.padded(device, SHAPE, 2, NumberedSequences.PADDING);
        private final Batch batch = new Batch(SHAPE);
        private final StepGraph graph = new StepGraph(uploads, SHAPE, pass, 1, this::enqueue);

        private void enqueue(List<ModelInput> inputs) {
            ModelInput input = inputs.getFirst();
            pass.begin(input.sequences());
            crossEntropy.forward(
                    head.forward(middle.forward(embedding.forward(input.ids(), pass), pass), pass),
                    input.labels(),
                    pass);
            embedding.backward(middle.backward(head.backward(crossEntropy.backward(1, pass), pass), pass), pass);
            parameters.nextStep();
        }

        void upload() {
            try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(20, 10))) {
                packer.fill(batch);
            }
            uploads.upload(batch);
        }

        /** Steps until one was replayed. */
        void replay() {
            for (int i = 0; i < 3; i++) {
                upload();
                graph.step();
            }
            assertEquals(2, graph.replayed(), graph.explain());
        }

        String refusal() {
            upload();
            String text = assertThrows(IllegalStateException.class, graph::step).getMessage();
            assertEquals(2, graph.replayed());
            assertEquals(3, parameters.step());
            return text;
        }

        @Override
        public void close() {
            graph.close();
            uploads.close();
            pass.close();
            parameters.close();
        }
    }

    @Test
    void parameters() {
        try (Training training = new Training()) {
            training.replay();
            training.parameters.close();
            assertEquals("the parameters are closed; make others with Parameters.allocate", training.refusal());
        }
    }

    @Test
    void pass() {
        try (Training training = new Training()) {
            training.replay();
            training.pass.close();
            assertEquals(
                    "launch: the pass was closed since the capture; launch the graph before Pass.close(), or capture again"
                            + " with another pass",
                    training.refusal());
        }
    }

    @Test
    void quantizers() {
        try (Training training = new Training()) {
            Quantizers quantizers = Quantizers.allocate(training.parameters, DelayedScaling.standard());
            training.pass.autocast(quantizers);
            training.replay();
            float[] gradients = training.parameters.gradients().toFloats(device.stream());
            quantizers.close();
            assertEquals(
                    "launch: the quantizers of the pass were closed since the capture, by themselves or with their parameters;"
                            + " launch the graph before that, or capture again with others",
                    training.refusal());
            assertArrayEquals(gradients, training.parameters.gradients().toFloats(device.stream()));
        }
    }

    /** Quantizers that the body itself brings are known, too. */
    @Test
    void quantizersOfTheBody() {
        try (Training training = new Training()) {
            Quantizers quantizers = Quantizers.allocate(training.parameters, DelayedScaling.standard());
            try (Pass evaluation = Pass.evaluation(device);
                    var scope = device.openScope()) {
                var x = scope.tensor(DType.BFLOAT16, 16, HIDDEN);
                x.zero(device.stream());
                Runnable body = () -> {
                    evaluation.begin();
                    evaluation.autocast(quantizers);
                    training.middle.forward(x, evaluation);
                    evaluation.noAutocast();
                };
                body.run();
                evaluation.end();
                try (var graph = device.stream().capture(body)) {
                    graph.launch();
                    quantizers.close();
                    assertEquals(
                            "launch: the quantizers of the pass were closed since the capture, by themselves or with their"
                                    + " parameters; launch the graph before that, or capture again with others",
                            assertThrows(IllegalStateException.class, graph::launch)
                                    .getMessage());
                }
            }
        }
    }

    @Test
    void aStepInsideACaptureIsRefusedAndItsBatchWaits() {
        try (Training training = new Training()) {
            training.replay();
            training.upload();
            assertEquals(
                    "step: a stream of device 0 captures, and what waits for the device or reads the host's memory cannot be"
                            + " part of a graph; call it before Stream.capture or after the launch",
                    assertThrows(CaptureException.class, () -> device.stream().capture(training.graph::step))
                            .getMessage());
            training.graph.step();
            assertEquals(3, training.graph.replayed());
        }
    }
}
