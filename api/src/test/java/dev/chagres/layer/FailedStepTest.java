package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.FailingLayer.Fails;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A step that fails in a later micro-batch is repeated from the first one on: nothing of it counts twice. */
@Tag("L0")
@Tag("L1")
class FailedStepTest {
    private static final int SIZE = OneLayer.SIZE;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private OneLayer model;
    private Pass pass;
    private Tensor x;

    @BeforeEach
    void make() {
        model = OneLayer.open(open.device(), DType.FLOAT32);
        pass = model.pass();
        x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, SIZE * SIZE, 1), SIZE, SIZE);
    }

    @AfterEach
    void close() {
        model.close();
    }

    private void microBatch() {
        model.microBatch(x);
    }

    /** Backward fails before any gradient of the micro-batch is written. */
    private void fail() {
        pass.begin();
        FailingLayer failing = FailingLayer.copying(Fails.BACKWARD);
        failing.forward(model.linear().forward(x, pass), pass);
        assertThrows(IllegalStateException.class, () -> failing.backward(x, pass));
    }

    private float[] gradients() {
        return model.parameters().gradients().toFloats(open.stream());
    }

    @Test
    void aBackwardCallThatWritesNothing() {
        microBatch();
        float[] expected = gradients();
        fail();
        microBatch();
        assertArrayEquals(expected, gradients());
        pass.end();
        microBatch();
        assertTrue(gradients()[0] != expected[0], "what has not failed adds");
    }

    @Test
    void aMicroBatchThatIsAbandoned() {
        microBatch();
        float[] expected = gradients();
        pass.begin();
        pass.abandon();
        microBatch();
        assertArrayEquals(expected, gradients());
    }

    /** Another pass goes on in its place. */
    @Test
    void aPassThatIsClosed() {
        microBatch();
        float[] expected = gradients();
        fail();
        pass.close();
        pass.close();
        try (Pass other = Pass.training(open.device())) {
            model.microBatch(other, x);
            assertArrayEquals(expected, gradients());
        }
    }

    @Test
    void aPassThatIsClosedBehindItsDevice() {
        Pass late;
        Parameters others;
        try (Device device = Device.open()) {
            ModelPlan plan = new ModelPlan();
            Linear other = new Linear(SIZE, SIZE, Initializer.normal(1), plan.group("other"));
            others = Parameters.allocate(device, plan, DType.FLOAT32, 4);
            late = Pass.training(device);
            late.begin();
            Tensor input = late.scope().tensor(DType.FLOAT32, SIZE, SIZE);
            input.zero(device.stream());
            other.forward(input, late);
            other.backward(input, late);
            late.abandon();
        }
        late.close();
        others.close();
        assertFalse(others.isOpen());
    }

    /** A pass outlives the models that it has trained. */
    @Test
    void parametersThatAreClosed() {
        ModelPlan plan = new ModelPlan();
        Linear other = new Linear(SIZE, SIZE, Initializer.normal(1), plan.group("other"));
        try (Parameters others = Parameters.allocate(open.device(), plan, DType.FLOAT32, 4)) {
            pass.begin();
            other.forward(x, pass);
            other.backward(x, pass);
            assertTrue(others.get("other.weight").hasGradient());
        }
        microBatch();
        float[] expected = gradients();
        fail();
        microBatch();
        assertArrayEquals(expected, gradients());
    }
}
