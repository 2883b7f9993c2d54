package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.ActivationLayer;
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

/** The clamped SwiGLU with numbers of one's own against double precision. */
@Tag("L0")
@Tag("L1")
class ClampedSwigluConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, ClampedSwiglu clamped, int rows, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (ClampedSwiglu clamped : List.of(
                    ClampedSwiglu.standard(),
                    ClampedSwiglu.standard().withLimit(1.5f),
                    new ClampedSwiglu(2, 1, 0),
                    ClampedSwiglu.standard().withAlpha(-0.5f).withLinearOffset(-2))) {
                cases.add(new Case(dtype, clamped, 33, 40));
                cases.add(new Case(dtype, clamped, 1, 1));
                cases.add(new Case(dtype, clamped, 7, 65));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        RealMatrix x = open.normal(c.dtype, c.rows, 2 * c.columns, 2);
        RealMatrix dy = open.normal(c.dtype, c.rows, c.columns, 1);
        ActivationWitness witness = new ActivationWitness(c.clamped);
        Tensor input = open.tensor(c.dtype, x);
        ActivationLayer layer = new ActivationLayer("clamped", c.clamped);
        assertEquals(Activation.CLAMPED_SWIGLU, layer.activation());
        Tensor y = layer.forward(input, open.pass().begin());
        open.assertClose("y", witness.forward(x), y, Tolerances.rounded(c.dtype));
        Tensor dx = layer.backward(open.tensor(c.dtype, dy), open.pass());
        open.assertClose("dx", witness.backward(dy), dx, Tolerances.rounded(c.dtype));
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void theStandardOneIsTheActivation(DType dtype) {
        Tensor x = open.tensor(dtype, open.normal(dtype, 9, 16, 4));
        Tensor y = open.unwritten(dtype, 9, 8);
        Tensor again = open.unwritten(dtype, 9, 8);
        Activation.CLAMPED_SWIGLU.forward(x, y, open.stream());
        ClampedSwiglu.standard().forward(x, again, open.stream());
        assertArrayEquals(open.read(y), open.read(again));
        Tensor dx = open.unwritten(dtype, 9, 16);
        Tensor dxAgain = open.unwritten(dtype, 9, 16);
        Activation.CLAMPED_SWIGLU.backward(y, x, dx, open.stream());
        ClampedSwiglu.standard().backward(y, x, dxAgain, open.stream());
        assertArrayEquals(open.read(dx), open.read(dxAgain));
        Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
        Tensor ofActivation = open.tensor(DType.FLOAT32, new double[] {0}, 1);
        ClampedSwiglu.standard().backward(y, x, dxAgain, amax, open.stream());
        Activation.CLAMPED_SWIGLU.backward(y, x, dx, ofActivation, open.stream());
        assertArrayEquals(open.read(dx), open.read(dxAgain));
        assertArrayEquals(open.read(ofActivation), open.read(amax));
        ClampedSwiglu.standard().forward(x, again, amax, open.stream());
        Activation.CLAMPED_SWIGLU.forward(x, y, ofActivation, open.stream());
        assertArrayEquals(open.read(y), open.read(again));
        assertArrayEquals(open.read(ofActivation), open.read(amax));
        Tensor none = open.scope().tensor(dtype, 0, 16);
        Tensor nothing = open.scope().tensor(dtype, 0, 8);
        ClampedSwiglu.standard().forward(none, nothing, open.stream());
        ClampedSwiglu.standard().backward(nothing, none, open.scope().like(none), open.stream());
        open.stream().synchronize();
    }

    @Test
    void refusesNumbersAndTensorsThatDoNotFit() {
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        for (float limit : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    argument,
                    "limit: expected a positive number, got " + limit,
                    () -> ClampedSwiglu.standard().withLimit(limit));
        }
        for (float wrong : new float[] {Float.NaN, Float.NEGATIVE_INFINITY}) {
            assertThrown(
                    argument,
                    "alpha: expected a finite number, got " + wrong,
                    () -> ClampedSwiglu.standard().withAlpha(wrong));
            assertThrown(
                    argument,
                    "linearOffset: expected a finite number, got " + wrong,
                    () -> ClampedSwiglu.standard().withLinearOffset(wrong));
        }
        Tensor odd = open.scope().tensor(DType.BFLOAT16, 2, 5);
        Tensor x = open.scope().tensor(DType.BFLOAT16, 2, 6);
        Tensor y = open.scope().tensor(DType.BFLOAT16, 2, 3);
        assertThrown(
                argument,
                "x: expected [T, 2F] with an even number of columns, for ClampedSwiglu is "
                        + Activation.CLAMPED_SWIGLU.formula() + ", got BFLOAT16[2, 5]",
                () -> ClampedSwiglu.standard().forward(odd, y, open.stream()));
        assertThrown(
                argument,
                "y: expected BFLOAT16[T, 3], got BFLOAT16[2, 6]",
                () -> ClampedSwiglu.standard().forward(x, x, open.stream()));
        assertThrown(
                argument,
                "dx: expected BFLOAT16[2, 6], got BFLOAT16[2, 3]",
                () -> ClampedSwiglu.standard().backward(y, x, y, open.stream()));
    }
}
