package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.List;
import java.util.function.DoubleBinaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code ElementLoss} against double precision, gradients against finite differences in double too. */
@Tag("L0")
@Tag("L1")
class ElementLossConformance {
    private static final int[] COUNTS = {0, 1, 7, 8, 9, 257, 4099};
    private static final double STEP = 1e-5;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static List<DType> floats() {
        return List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
    }

    private static double squaredError(double x, double target) {
        return (x - target) * (x - target);
    }

    private static double binaryCrossEntropy(double x, double target) {
        return Math.max(x, 0) - x * target + Math.log1p(Math.exp(-Math.abs(x)));
    }

    @FunctionalInterface
    private interface Forward {
        void enqueue(Tensor x, Tensor target, Tensor y);
    }

    @FunctionalInterface
    private interface Backward {
        void enqueue(Tensor dy, Tensor x, Tensor target, Tensor dx);
    }

    private static void check(
            DType dtype,
            DoubleBinaryOperator loss,
            DoubleBinaryOperator derivative,
            Forward forward,
            Backward backward) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 2);
            double[] target = open.normal(dtype, count, 1);
            double[] dy = open.normal(dtype, count, 1);
            double[] losses = new double[count];
            double[] gradients = new double[count];
            for (int i = 0; i < count; i++) {
                losses[i] = loss.applyAsDouble(x[i], target[i]);
                double slope = derivative.applyAsDouble(x[i], target[i]);
                double beside = loss.applyAsDouble(x[i] + STEP, target[i]) - loss.applyAsDouble(x[i] - STEP, target[i]);
                assertEquals(beside / (2 * STEP), slope, 1e-6 * (1 + Math.abs(slope)));
                gradients[i] = dy[i] * slope;
            }
            Tensor over = open.tensor(dtype, x, count);
            forward.enqueue(over, open.tensor(dtype, target, count), over);
            open.assertClose("loss over x", losses, open.read(over), 1, Tolerances.rounded(dtype));
            Tensor dx = open.tensor(dtype, dy, count);
            backward.enqueue(dx, open.tensor(dtype, x, count), open.tensor(dtype, target, count), dx);
            open.assertClose("gradient over dy", gradients, open.read(dx), 1, Tolerances.rounded(dtype));
        }
    }

    @ParameterizedTest
    @MethodSource("floats")
    void squaredErrors(DType dtype) {
        check(
                dtype,
                ElementLossConformance::squaredError,
                (x, target) -> 2 * (x - target),
                (x, target, y) -> ElementLoss.squaredError(x, target, y, open.stream()),
                (dy, x, target, dx) -> ElementLoss.squaredErrorBackward(dy, x, target, dx, open.stream()));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void binaryCrossEntropies(DType dtype) {
        check(
                dtype,
                ElementLossConformance::binaryCrossEntropy,
                (x, target) -> 1 / (1 + Math.exp(-x)) - target,
                (x, target, y) -> ElementLoss.binaryCrossEntropy(x, target, y, open.stream()),
                (dy, x, target, dx) -> ElementLoss.binaryCrossEntropyBackward(dy, x, target, dx, open.stream()));
    }

    /** A sure and right estimate costs almost nothing, not the rounding of a large logit; a wrong one costs its logit. */
    @Test
    void largeLogitsCancelNothing() {
        Tensor x = open.tensor(DType.FLOAT32, new double[] {30, -30, 1000, -1000, 0}, 5);
        Tensor target = open.tensor(DType.FLOAT32, new double[] {1, 0, 0, 1, 0.5}, 5);
        ElementLoss.binaryCrossEntropy(x, target, x, open.stream());
        float[] y = x.toFloats(open.stream());
        assertEquals(Math.log1p(Math.exp(-30)), y[0], 1e-19);
        assertEquals(y[0], y[1]);
        assertEquals(1000, y[2]);
        assertEquals(1000, y[3]);
        assertEquals(Math.log(2), y[4], 1e-7);
    }

    @Test
    void refusesWhatDoesNotFit() {
        Tensor two = open.unwritten(DType.FLOAT32, 2);
        Tensor three = open.unwritten(DType.FLOAT32, 3);
        Tensor ints = open.scope().tensor(DType.INT32, 2);
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        String sizes = ": expected FLOAT32[2], got FLOAT32[3]";
        assertThrown(argument, "target" + sizes, () -> ElementLoss.squaredError(two, three, two, open.stream()));
        assertThrown(argument, "y" + sizes, () -> ElementLoss.binaryCrossEntropy(two, two, three, open.stream()));
        assertThrown(
                argument, "dy" + sizes, () -> ElementLoss.squaredErrorBackward(three, two, two, two, open.stream()));
        assertThrown(
                argument,
                "dx" + sizes,
                () -> ElementLoss.binaryCrossEntropyBackward(two, two, two, three, open.stream()));
        assertThrown(
                argument,
                "x: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[2]",
                () -> ElementLoss.squaredError(ints, two, two, open.stream()));
    }
}
