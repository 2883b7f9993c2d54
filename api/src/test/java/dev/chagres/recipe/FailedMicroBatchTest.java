package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.io.Safetensors;
import dev.chagres.layer.FailingLayer;
import dev.chagres.layer.FailingLayer.Fails;
import dev.chagres.layer.Linear;
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

/** A micro-batch that fails takes its magnitudes along, and leaves those of micro-batches whose gradients count. */
@Tag("L0")
@Tag("L1")
class FailedMicroBatchTest {
    private static final int SIZE = OneLayer.SIZE;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private OneLayer model;
    private FailingLayer failing;
    private Linear linear;
    private Parameters parameters;
    private Quantizers quantizers;
    private Pass pass;

    @BeforeEach
    void make() {
        model = OneLayer.open(open.device(), DType.BFLOAT16);
        linear = model.linear();
        parameters = model.parameters();
        pass = model.pass();
        quantizers = Quantizers.allocate(parameters, DelayedScaling.standard().withAmaxHistoryLength(3));
        pass.autocast(quantizers);
        failing = FailingLayer.around(linear, Fails.FORWARD);
    }

    @AfterEach
    void close() {
        model.close();
    }

    private static Tensor values(Scope scope, float largest) {
        float[] values = new float[SIZE * SIZE];
        for (int i = 0; i < values.length; i++) {
            values[i] = largest * (i == 7 ? 1 : 0.5f * (float) Math.sin(i));
        }
        Tensor x = scope.tensor(DType.BFLOAT16, SIZE, SIZE);
        x.set(open.stream(), values);
        return x;
    }

    private void rest(Pass of, float largest, float largestGradient) {
        linear.forward(values(of.scope(), largest), of);
        linear.backward(values(of.scope(), largestGradient), of);
    }

    private void microBatch(Pass of, float largest, float largestGradient) {
        of.begin();
        rest(of, largest, largestGradient);
    }

    private void fail(float largest) {
        Tensor x = values(pass.scope(), largest);
        assertThrows(IllegalStateException.class, () -> failing.forward(x, pass));
    }

    private float scale(String place) {
        Tensor scale = quantizers.state().tensors().get("body." + place + ".scale");
        return scale.toFloats(open.stream())[0];
    }

    /** The step ends: scales must follow these magnitudes. */
    private void assertRecorded(float input, float gradient) {
        float weight = 0;
        for (float one : linear.weight().weight().toFloats(open.stream())) {
            weight = Math.max(weight, Math.abs(one));
        }
        parameters.nextStep();
        assertEquals(448 / input, scale("input"));
        assertEquals(448 / weight, scale("weight"));
        assertEquals(57344 / gradient, scale("output_gradient"));
    }

    @Test
    void leavesThoseOfEarlierOnes() {
        microBatch(pass, 8, 4);
        for (int i = 0; i < 2; i++) {
            pass.begin();
            fail(1e7f);
        }
        microBatch(pass, 2, 1);
        assertRecorded(8, 4);
        microBatch(pass, 4, 32);
        pass.begin();
        fail(1e7f);
        pass.end();
        assertRecorded(8, 32);
    }

    @Test
    void leavesNothingWhereItIsTheFirst() {
        pass.begin();
        fail(1e7f);
        microBatch(pass, 2, 1);
        assertRecorded(2, 1);
    }

    /** A step that was given up inside of a micro-batch is another step for what that records behind. */
    @Test
    void leavesThoseOfAMicroBatchThatForgetsFirst() {
        microBatch(pass, 16, 8);
        pass.begin();
        parameters.forgetGradients();
        rest(pass, 8, 4);
        pass.begin();
        fail(1e7f);
        microBatch(pass, 2, 1);
        assertRecorded(8, 4);
    }

    /** The gradients of a micro-batch count whose failed call was repeated. */
    @Test
    void leavesItsOwnWhereTheCallIsRepeated() {
        microBatch(pass, 2, 1);
        pass.begin();
        fail(8);
        rest(pass, 8, 4);
        microBatch(pass, 2, 1);
        assertRecorded(8, 4);
    }

    @Test
    void forgetsAllWhereBackwardFails() {
        microBatch(pass, 16, 8);
        pass.begin();
        failing.fails(Fails.BACKWARD);
        failing.forward(values(pass.scope(), 16), pass);
        Tensor dy = values(pass.scope(), 8);
        assertThrows(IllegalStateException.class, () -> failing.backward(dy, pass));
        microBatch(pass, 2, 1);
        assertRecorded(2, 1);
    }

    /** The device has the largest of both passes: it cannot tell whose it is, so all stays. */
    @Test
    void leavesThoseOfPassesUnderWay() {
        try (Pass other = Pass.training(open.device())) {
            other.autocast(quantizers);
            microBatch(pass, 2, 1);
            other.begin();
            pass.begin();
            rest(other, 8, 4);
            fail(4);
            microBatch(pass, 2, 1);
            assertRecorded(8, 4);
            other.begin();
            pass.begin();
            fail(1e7f); // The other one has recorded nothing since.
            microBatch(pass, 8, 4);
            assertRecorded(8, 4);
        }
    }

    @Test
    void evaluationBetweenChangesNothing() {
        try (Pass evaluation = Pass.evaluation(open.device())) {
            microBatch(pass, 8, 4);
            pass.begin();
            evaluation.autocast(quantizers);
            linear.forward(values(evaluation.begin().scope(), 1e6f), evaluation);
            fail(1e7f);
            microBatch(pass, 2, 1);
            assertRecorded(8, 4);
        }
    }

    @Test
    void leavesThoseOfGraphs() {
        try (Scope scope = open.device().openScope()) {
            Tensor x = values(scope, 8);
            Tensor dy = values(scope, 4);
            microBatch(pass, 2, 1);
            parameters.nextStep();
            pass.end();
            Runnable captured = () -> {
                pass.begin();
                linear.forward(x, pass);
                linear.backward(dy, pass);
            };
            try (Graph graph = open.stream().capture(captured)) {
                graph.launch();
                pass.begin();
                fail(1e7f);
                microBatch(pass, 2, 1);
                assertRecorded(8, 4);
                pass.begin();
                graph.launch();
                fail(4);
                microBatch(pass, 2, 1);
                assertRecorded(8, 4);
            }
        }
    }

    /** A capture runs nothing, so that nothing is taken back where it fails. */
    @Test
    void leavesThoseOfEarlierOnesWhereACaptureFails() {
        try (Scope scope = open.device().openScope()) {
            Tensor x = values(scope, 1e7f);
            microBatch(pass, 8, 4);
            pass.end();
            assertThrows(
                    IllegalStateException.class, () -> open.stream().capture(() -> failing.forward(x, pass.begin())));
            microBatch(pass, 2, 1);
            assertRecorded(8, 4);
        }
    }

    @Test
    void leavesThoseThatWereLoaded(@TempDir Path folder) {
        microBatch(pass, 8, 4);
        Path file = folder.resolve("middle.safetensors");
        Safetensors.save(file, quantizers.state(), open.stream(), Map.of());
        parameters.forgetGradients();
        pass.begin();
        Safetensors.load(file, quantizers.state(), open.stream());
        fail(2);
        microBatch(pass, 2, 1);
        assertRecorded(8, 4);
    }

    @Test
    void aSteadyStepOfSeveralMakesNoGarbage() {
        try (Scope scope = open.device().openScope()) {
            Tensor x = values(scope, 8);
            Allocation.assertNone(
                    "a step of two micro-batches",
                    () -> {
                        for (int i = 0; i < 2; i++) {
                            pass.begin();
                            linear.forward(x, pass);
                            linear.backward(x, pass);
                        }
                        parameters.nextStep();
                    },
                    50);
            float[] history = quantizers
                    .state()
                    .tensors()
                    .get("quantizers.backward.float8_e5m2.amax_history")
                    .toFloats(open.stream());
            assertArrayEquals(new float[] {0, 8, 8}, history);
        }
    }
}
