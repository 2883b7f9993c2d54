package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import dev.chagres.witness.ActivationWitness;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code ActivationLayer}: all twelve activations against double precision. */
@Tag("L0")
@Tag("L1")
class ActivationLayerConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(Activation activation, DType dtype, int tokens, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Activation activation : Activation.values()) {
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                for (int[] size : new int[][] {{1, 1}, {17, 33}, {65, 64}, {128, 127}, {3, 1025}}) {
                    cases.add(new Case(activation, dtype, size[0], size[1]));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        ActivationLayer layer = new ActivationLayer("f", c.activation);
        ActivationWitness witness = new ActivationWitness(c.activation);
        // Some numbers lie behind the limits of the clamped one.
        RealMatrix x = open.normal(c.dtype, c.tokens, (int) c.activation.inputColumns(c.columns), 4);
        RealMatrix dy = open.normal(c.dtype, c.tokens, c.columns, 1);
        Tensor input = open.tensor(c.dtype, x);
        Pass pass = open.pass();
        Tensor y = layer.forward(input, pass);
        assertEquals(Shape.of(c.tokens, c.columns), y.shape());
        // What is nearly 0 is the product of a number and a small factor, whose error is that of exp.
        open.assertClose("y", Comparison.entries(witness.forward(x)), open.read(y), 1, Tolerances.rounded(c.dtype));
        Tensor dx = layer.backward(open.tensor(c.dtype, dy), pass);
        assertEquals(input.shape(), dx.shape());
        open.assertClose("dx", Comparison.entries(witness.backward(dy)), open.read(dx), 1, Tolerances.rounded(c.dtype));
        try (Pass evaluation = Pass.evaluation(open.device()).begin()) {
            assertArrayEquals(open.read(y), open.read(layer.forward(input, evaluation)));
        }
    }

    @ParameterizedTest
    @EnumSource
    void saysWhatItIs(Activation activation) {
        ActivationLayer layer = new ActivationLayer("f", activation);
        assertSame(activation, layer.activation());
        assertEquals("f", layer.name());
        assertEquals(activation.isGated() ? 4 : 8, layer.outputColumns(8));
        assertFalse(layer.requiresGradient());
        Tensor x = open.scope().tensor(DType.FLOAT32, 2, 8);
        assertEquals(
                "f: " + activation.forwardFunction() + " and " + activation.backwardFunction(),
                layer.explain(x, open.pass()));
        assertEquals("ActivationLayer", new ActivationLayer("", activation).name());
    }

    @Test
    void refusesWhatDoesNotFit() {
        ActivationLayer gated = new ActivationLayer("gated", Activation.SWIGLU);
        Tensor odd = open.scope().tensor(DType.FLOAT32, 2, 7);
        assertThrown(
                IllegalArgumentException.class,
                "x: gated expected an even number of columns, a half each for gate and value, got FLOAT32[2, 7]",
                () -> gated.forward(odd, open.pass()));
        Tensor x = open.scope().tensor(DType.FLOAT32, 2, 8);
        assertThrown(
                IllegalArgumentException.class,
                "y: expected FLOAT32[T, 4], got FLOAT32[2, 8]",
                () -> gated.forward(x, open.scope().like(x), open.pass()));
        x.zero(open.stream());
        gated.forward(x, open.pass());
        assertThrown(
                IllegalArgumentException.class,
                "dy: expected FLOAT32[2, 4], got FLOAT32[2, 8]",
                () -> gated.backward(open.scope().like(x), open.pass()));
    }

    /** Without a parameter there is nothing to learn: where the input wants no gradient, nothing is kept. */
    @Test
    void anInputWithoutGradientKeepsNothing() {
        ActivationLayer layer = new ActivationLayer("f", Activation.GELU);
        Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, 4, 64, 1));
        x.stopGradient();
        Tensor y = layer.forward(x, open.pass());
        assertFalse(y.requiresGradient());
        assertArrayEquals(new float[256], open.read(layer.backward(open.scope().like(x), open.pass())));
    }

    @ParameterizedTest
    @EnumSource
    void noTokens(Activation activation) {
        ActivationLayer layer = new ActivationLayer("f", activation);
        Tensor x = open.scope().tensor(DType.BFLOAT16, 0, 8);
        Tensor y = layer.forward(x, open.pass());
        assertEquals(Shape.of(0, activation.isGated() ? 4 : 8), y.shape());
        assertEquals(Shape.of(0, 8), layer.backward(y, open.pass()).shape());
    }
}
