package dev.chagres.pass;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.te.Activation;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A tensor with several readers, alone: its gradient, and calls out of order. */
@Tag("L0")
@Tag("L1")
class SharedInputTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Readers without parameters: the gradient is the sum, whichever wrote first, also of one reader twice. */
    @Test
    void theGradientIsTheSumOfTheReaders() {
        SharedInput fan = new SharedInput("fan");
        Layer silu = new ActivationLayer("silu", Activation.SILU);
        Layer relu = new ActivationLayer("relu", Activation.RELU);
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        Tensor dy = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        Pass pass = open.pass();
        silu.forward(x, pass);
        float[] bySilu = open.read(silu.backward(dy, pass));
        relu.forward(x, pass);
        float[] byRelu = open.read(relu.backward(dy, pass));
        assertSame(x, fan.forward(x, pass));
        assertSame(x, fan.tensor(pass));
        silu.forward(x, pass);
        relu.forward(x, pass);
        silu.forward(x, pass);
        fan.backward(silu, dy, pass);
        fan.backward(relu, dy, pass);
        fan.add(dy, pass);
        fan.backward(silu, dy, pass);
        float[] sum = open.read(fan.backward(pass));
        float[] own = open.read(dy);
        for (int i = 0; i < sum.length; i++) {
            assertEquals(2.0 * bySilu[i] + byRelu[i] + own[i], sum[i], 1e-6);
        }
        fan.forward(x, pass);
        assertArrayEquals(new float[32], open.read(fan.backward(pass)), "no reader, no gradient");
    }

    /** One object twice in a pass: the calls nest. */
    @Test
    void forwardCallsNest() {
        SharedInput fan = new SharedInput("fan");
        Layer relu = new ActivationLayer("relu", Activation.RELU);
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        Tensor z = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 2, 3, 1));
        Pass pass = open.pass();
        fan.forward(x, pass);
        relu.forward(x, pass);
        fan.forward(z, pass);
        assertSame(z, fan.tensor(pass));
        relu.forward(z, pass);
        try (Pass.SavingSwitch off = pass.withoutSaving()) {
            assertSame(z, fan.tensor(pass));
            fan.forward(x, pass);
            assertSame(x, fan.tensor(pass));
            assertFalse(pass.isSaving());
        }
        assertSame(z, fan.tensor(pass), "what was looked at without saving is not kept");
        fan.backward(relu, open.scope().like(z), pass);
        assertEquals(z.shape(), fan.backward(pass).shape());
        assertSame(x, fan.tensor(pass));
        fan.backward(relu, open.scope().like(x), pass);
        assertEquals(x.shape(), fan.backward(pass).shape());
    }

    @Test
    void refusals() {
        SharedInput fan = new SharedInput("fan");
        assertEquals("fan: SharedInput", fan.toString());
        Layer relu = new ActivationLayer("relu", Activation.RELU);
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        Pass pass = open.pass();
        String none = "fan: this pass holds no tensor with several readers; call forward(x, pass) first";
        Class<IllegalStateException> state = IllegalStateException.class;
        assertThrown(state, none, () -> fan.tensor(pass));
        assertThrown(state, none, () -> fan.add(x, pass));
        assertThrown(state, none, () -> fan.backward(relu, x, pass));
        assertThrown(
                state,
                "backward of fan was called, but no forward call waits for its backward; call forward first, while the pass"
                        + " saves",
                () -> fan.backward(pass));
        assertThrown(NullPointerException.class, "x: expected a value, got null", () -> fan.forward(null, pass));
        assertThrown(NullPointerException.class, "pass: expected a value, got null", () -> fan.forward(x, null));
        fan.forward(x, pass);
        assertThrown(
                NullPointerException.class, "reader: expected a value, got null", () -> fan.backward(null, x, pass));
        try (Pass other = Pass.training(open.device()).begin();
                Pass evaluation = Pass.evaluation(open.device()).begin()) {
            assertThrown(state, none, () -> fan.tensor(other));
            assertThrown(state, none, () -> fan.tensor(evaluation));
            assertThrown(state, none, () -> fan.add(x, evaluation));
        }
        assertThrown(
                IllegalArgumentException.class,
                "gradient: expected FLOAT32[4, 8], got FLOAT32[4, 7]",
                () -> fan.add(open.scope().tensor(DType.FLOAT32, 4, 7), pass));
        relu.forward(x, pass);
        assertThrown(
                state,
                "backward of fan was called, but the last forward was of relu; call backward in the reverse order of"
                        + " forward",
                () -> fan.backward(pass));
        fan.backward(relu, open.scope().like(x), pass);
        fan.backward(pass);
        pass.begin();
        assertThrown(state, none, () -> fan.add(x, pass));
    }

    /** An evaluation pass remembers what it was given until it begins anew, though the tensor itself lives on. */
    @Test
    void anEvaluationPassForgetsTheMicroBatchBefore() {
        SharedInput fan = new SharedInput("fan");
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        try (Pass evaluation = Pass.evaluation(open.device()).begin()) {
            fan.forward(x, evaluation);
            assertSame(x, fan.tensor(evaluation));
            String none = "fan: this pass holds no tensor with several readers; call forward(x, pass) first";
            evaluation.begin();
            assertThrown(IllegalStateException.class, none, () -> fan.tensor(evaluation));
            fan.forward(x, evaluation);
            evaluation.end();
            assertThrown(IllegalStateException.class, none, () -> fan.tensor(evaluation));
        }
    }

    @Test
    void aSteadyLoopMakesNoGarbage() {
        SharedInput fan = new SharedInput("fan");
        Layer silu = new ActivationLayer("silu", Activation.SILU);
        Layer relu = new ActivationLayer("relu", Activation.RELU);
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 8, 1));
        Pass pass = open.pass();
        Allocation.assertNone("a fan with two readers", () -> {
            pass.begin();
            fan.forward(x, pass);
            silu.forward(x, pass);
            relu.forward(fan.tensor(pass), pass);
            fan.backward(relu, x, pass);
            fan.backward(silu, x, pass);
            fan.backward(pass);
        });
    }
}
