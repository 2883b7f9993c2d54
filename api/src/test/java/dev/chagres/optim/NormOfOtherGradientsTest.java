package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.OneLayer;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;

/** A step is refused with a norm that is not that of its gradients, and loses nothing. */
@Tag("L0")
@Tag("L1")
class NormOfOtherGradientsTest {
    private static final int SIZE = OneLayer.SIZE;
    private static final float RATE = 1e-2f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private OneLayer model;
    private Parameters parameters;
    private AdamW optimizer;
    private GradientNorm norm;
    private Pass pass;
    private Tensor x;

    @BeforeEach
    void make() {
        model = OneLayer.open(open.device(), DType.FLOAT32);
        parameters = model.parameters();
        pass = model.pass();
        optimizer = new AdamW(parameters, AdamW.Config.standard());
        norm = new GradientNorm(parameters, 1);
        x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, SIZE * SIZE, 1), SIZE, SIZE);
    }

    @AfterEach
    void close() {
        optimizer.close();
        model.close();
    }

    private void microBatch() {
        model.microBatch(x);
    }

    private void assertRefused(Runnable step) {
        float[] before = weights();
        long steps = optimizer.step();
        assertThrown(
                IllegalStateException.class,
                "norm: expected the gradients of which compute() has taken the norm, got others: a backward call,"
                        + " forgetGradients(), a loaded state or nextStep() came after it; call compute() after the step's last"
                        + " backward call",
                step::run);
        assertArrayEquals(before, weights());
        assertEquals(steps, optimizer.step());
    }

    private float[] weights() {
        return parameters.weights().toFloats(open.stream());
    }

    private void step() {
        optimizer.step(RATE, norm);
    }

    /** The factor of the first micro-batch would clip the sum of two to more than is asked for. */
    @Test
    void aBackwardCallAfterIt() {
        microBatch();
        norm.compute();
        float first = norm.norm().toFloats(open.stream())[0];
        microBatch();
        assertRefused(this::step);
        norm.compute();
        assertEquals(2 * first, norm.norm().toFloats(open.stream())[0], 1e-3f * first);
        step();
        assertEquals(1, optimizer.step());
    }

    @Test
    void gradientsThatWereForgotten() {
        microBatch();
        norm.compute();
        parameters.forgetGradients();
        assertRefused(this::step);
        microBatch();
        assertRefused(this::step);
    }

    @Test
    void aStepWithoutItOrALoadedState(@TempDir Path folder) {
        microBatch();
        norm.compute();
        optimizer.step(RATE);
        microBatch();
        assertRefused(this::step);
        norm.compute();
        Path file = folder.resolve("weights.safetensors");
        Safetensors.save(file, parameters.state(), open.stream(), Map.of());
        Safetensors.load(file, parameters.state(), open.stream());
        assertRefused(this::step);
    }

    /** The norm of a graph would be taken of gradients that its backward calls write only later. */
    @Test
    void aBackwardCallAfterItInACapture() {
        microBatch();
        norm.compute();
        step();
        assertCaptureRefused(() -> {
            microBatch();
            norm.compute();
            microBatch();
            step();
        });
        assertCaptureRefused(() -> {
            norm.compute();
            microBatch();
            step();
        });
        assertCaptureRefused(() -> {
            norm.compute();
            parameters.forgetGradients();
            step();
        });
        microBatch();
        norm.compute();
        assertCaptureRefused(() -> {
            microBatch();
            step();
        });
    }

    private void assertCaptureRefused(Runnable work) {
        pass.end();
        assertRefused(() -> open.stream().capture(work));
        pass.abandon();
    }

    /** The gradients that a graph's norm has read may be written again for its next launch. */
    @Test
    void aCaptureOfAWholeStep() {
        microBatch();
        norm.compute();
        step();
        pass.end();
        try (Graph whole = open.stream().capture(() -> {
            microBatch();
            norm.compute();
            step();
        })) {
            optimizer.rate(RATE);
            whole.launch();
            whole.launch();
            assertEquals(3, optimizer.step());
        }
    }

    @Test
    void graphsOfParts() {
        microBatch();
        norm.compute();
        step();
        pass.end();
        try (Graph backward = open.stream().capture(this::microBatch);
                Graph computed = open.stream().capture(() -> {
                    microBatch();
                    norm.compute();
                })) {
            computed.launch();
            step(); // its own norm
            microBatch();
            norm.compute();
            pass.end();
            try (Graph stepping = open.stream().capture(this::step)) {
                stepping.launch(); // A capture writes no gradient.
                assertEquals(3, optimizer.step());
                parameters.forgetGradients();
                backward.launch();
                norm.compute();
                optimizer.rate(RATE);
                stepping.launch();
                assertEquals(4, optimizer.step());
                norm.compute();
                parameters.forgetGradients();
                backward.launch();
                assertRefused(stepping::launch);
                norm.compute();
                stepping.launch();
                assertEquals(5, optimizer.step());
            }
        }
    }
}
