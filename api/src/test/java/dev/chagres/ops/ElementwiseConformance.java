package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Output;
import dev.chagres.witness.GeluWitness;
import dev.chagres.witness.Rounding;
import java.util.List;
import org.apache.commons.math3.special.Erf;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Elementwise} against double precision, at sizes and places that are no multiples of what a thread loads. */
@Tag("L0")
@Tag("L1")
class ElementwiseConformance {
    private static final String SHARED = "'s; it is written to while that is read or written";
    private static final int[] COUNTS = {0, 1, 7, 8, 9, 255, 256, 257, 4099};

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    static List<DType> floats() {
        return List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16);
    }

    @ParameterizedTest
    @MethodSource("floats")
    void add(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 1);
            double[] residual = open.normal(dtype, count, 1);
            Tensor y = open.unwritten(dtype, count);
            Elementwise.add(open.tensor(dtype, x, count), open.tensor(dtype, residual, count), y, open.stream());
            double[] expected = new double[count];
            for (int i = 0; i < count; i++) {
                expected[i] = x[i] + residual[i];
            }
            open.assertClose("y", expected, open.read(y), 1, Tolerances.rounded(dtype));
        }
    }

    @ParameterizedTest
    @MethodSource("floats")
    void subtractAndMultiply(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 1);
            double[] other = open.normal(dtype, count, 1);
            double[] difference = new double[count];
            double[] product = new double[count];
            for (int i = 0; i < count; i++) {
                difference[i] = x[i] - other[i];
                product[i] = x[i] * other[i];
            }
            Tensor right = open.tensor(dtype, other, count);
            Tensor y = open.unwritten(dtype, count);
            Elementwise.subtract(open.tensor(dtype, x, count), right, y, open.stream());
            open.assertClose("difference", difference, open.read(y), 1, Tolerances.rounded(dtype));
            Elementwise.multiply(open.tensor(dtype, x, count), right, right, open.stream());
            open.assertClose("product over other", product, open.read(right), 1, Tolerances.rounded(dtype));
        }
        Tensor x = open.unwritten(dtype, 2);
        Tensor longer = open.unwritten(dtype, 3);
        String text = "other: expected " + dtype + "[2], got " + dtype + "[3]";
        assertThrown(IllegalArgumentException.class, text, () -> Elementwise.subtract(x, longer, x, open.stream()));
        assertThrown(IllegalArgumentException.class, text, () -> Elementwise.multiply(x, longer, x, open.stream()));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void sigmoidAndErfWithGradients(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 1);
            double[] dy = open.normal(dtype, count, 1);
            double[] sigmoid = new double[count];
            double[] sigmoidGradient = new double[count];
            double[] erf = new double[count];
            double[] erfGradient = new double[count];
            for (int i = 0; i < count; i++) {
                sigmoid[i] = 1 / (1 + Math.exp(-x[i]));
                sigmoidGradient[i] = dy[i] * x[i] * (1 - x[i]); // x stands for what forward gave
                erf[i] = Erf.erf(x[i]);
                erfGradient[i] = dy[i] * 2 / Math.sqrt(Math.PI) * Math.exp(-x[i] * x[i]);
            }
            Tensor y = open.tensor(dtype, x, count);
            Elementwise.sigmoid(y, y, open.stream());
            open.assertClose("sigmoid over x", sigmoid, open.read(y), 1, Tolerances.rounded(dtype));
            Tensor dx = open.tensor(dtype, dy, count);
            Elementwise.sigmoidBackward(dx, open.tensor(dtype, x, count), dx, open.stream());
            open.assertClose("its gradient over dy", sigmoidGradient, open.read(dx), 1, Tolerances.rounded(dtype));
            Tensor z = open.tensor(dtype, x, count);
            Elementwise.erf(z, z, open.stream());
            open.assertClose("erf over x", erf, open.read(z), 1, Tolerances.rounded(dtype));
            Tensor dz = open.tensor(dtype, x, count);
            Elementwise.erfBackward(open.tensor(dtype, dy, count), dz, dz, open.stream());
            open.assertClose("its gradient over x", erfGradient, open.read(dz), 1, Tolerances.rounded(dtype));
        }
        Tensor two = open.unwritten(dtype, 2);
        Tensor three = open.unwritten(dtype, 3);
        String types = "expected " + dtype + "[2], got " + dtype + "[3]";
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        assertThrown(argument, "y: " + types, () -> Elementwise.sigmoid(two, three, open.stream()));
        assertThrown(argument, "y: " + types, () -> Elementwise.erf(two, three, open.stream()));
        assertThrown(argument, "dy: " + types, () -> Elementwise.sigmoidBackward(three, two, two, open.stream()));
        assertThrown(argument, "dx: " + types, () -> Elementwise.erfBackward(two, two, three, open.stream()));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void biasAdd(DType dtype) {
        for (int rows : new int[] {0, 1, 5}) {
            for (int columns : new int[] {1, 7, 8, 320}) {
                int count = rows * columns;
                double[] x = open.normal(dtype, count, 1);
                double[] bias = open.normal(dtype, columns, 1);
                double[] residual = open.normal(dtype, count, 1);
                double[] biased = new double[count];
                double[] summed = new double[count];
                for (int i = 0; i < count; i++) {
                    biased[i] = x[i] + bias[i % columns];
                    summed[i] = biased[i] + residual[i];
                }
                Tensor overX = open.tensor(dtype, x, rows, columns);
                Tensor added = open.tensor(dtype, bias, columns);
                Elementwise.biasAdd(overX, added, null, overX, open.stream());
                open.assertClose("x + bias", biased, open.read(overX), 1, Tolerances.rounded(dtype));
                Tensor overResidual = open.tensor(dtype, residual, rows, columns);
                Tensor read = open.tensor(dtype, x, rows, columns);
                Elementwise.biasAdd(read, added, overResidual, overResidual, open.stream());
                open.assertClose("sum", summed, open.read(overResidual), 1, Tolerances.rounded(dtype));
            }
        }
    }

    @Test
    void biasAddRefusals() {
        Tensor x = open.unwritten(DType.FLOAT32, 3, 8);
        Tensor bias = open.unwritten(DType.FLOAT32, 8);
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        assertThrown(
                argument,
                "bias: expected FLOAT32[8], got FLOAT32[3]",
                () -> Elementwise.biasAdd(x, open.unwritten(DType.FLOAT32, 3), null, x, open.stream()));
        assertThrown(
                argument,
                "bias: expected FLOAT32[8], got BFLOAT16[8]",
                () -> Elementwise.biasAdd(x, open.unwritten(DType.BFLOAT16, 8), null, x, open.stream()));
        assertThrown(
                argument,
                "residual: expected FLOAT32[3, 8], got FLOAT32[8, 3]",
                () -> Elementwise.biasAdd(x, bias, open.unwritten(DType.FLOAT32, 8, 3), x, open.stream()));
        Tensor row = open.scope().view(x, 0, 8);
        assertThrown(
                argument,
                "y: expected memory of its own, got some of bias" + SHARED,
                () -> Elementwise.biasAdd(x, row, null, x, open.stream()));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void reciprocal(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 1);
            double[] expected = new double[count];
            for (int i = 0; i < count; i++) {
                x[i] = Rounding.round(x[i] < 0 ? x[i] - 0.5 : x[i] + 0.5, dtype);
                expected[i] = 1 / x[i];
            }
            Tensor y = open.tensor(dtype, x, count);
            Elementwise.reciprocal(y, y, open.stream());
            open.assertClose("y", expected, open.read(y), 1, Tolerances.rounded(dtype));
        }
        assertThrown(
                IllegalArgumentException.class,
                "y: expected " + dtype + "[2], got " + dtype + "[3]",
                () -> Elementwise.reciprocal(open.unwritten(dtype, 2), open.unwritten(dtype, 3), open.stream()));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void addInPlace(DType dtype) {
        double[] x = open.normal(dtype, 100, 1);
        double[] residual = open.normal(dtype, 100, 1);
        Tensor sum = open.unwritten(dtype, 100);
        Elementwise.add(open.tensor(dtype, x, 100), open.tensor(dtype, residual, 100), sum, open.stream());
        Tensor overX = open.tensor(dtype, x, 100);
        Elementwise.add(overX, open.tensor(dtype, residual, 100), overX, open.stream());
        assertArrayEquals(open.read(sum), open.read(overX));
        Tensor overResidual = open.tensor(dtype, residual, 100);
        Elementwise.add(open.tensor(dtype, x, 100), overResidual, overResidual, open.stream());
        assertArrayEquals(open.read(sum), open.read(overResidual));
    }

    /** Views that begin at an odd element. */
    @ParameterizedTest
    @MethodSource("floats")
    void unalignedViews(DType dtype) {
        double[] values = open.normal(dtype, 101, 1);
        Tensor all = open.tensor(dtype, values, 101);
        Tensor odd = open.scope().view(all, 1, 100);
        Tensor target = open.unwritten(dtype, 103);
        Tensor y = open.scope().view(target, 3, 100);
        Elementwise.add(odd, odd, y, open.stream());
        double[] expected = new double[100];
        for (int i = 0; i < 100; i++) {
            expected[i] = Rounding.round(2 * values[i + 1], dtype);
        }
        open.assertClose("y", expected, y, Tolerances.rounded(dtype));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void accumulate(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 1);
            double[] before = open.normal(DType.FLOAT32, count, 1);
            Tensor overwritten = open.unwritten(DType.FLOAT32, count);
            Elementwise.accumulate(open.tensor(dtype, x, count), overwritten, Output.OVERWRITE, open.stream());
            open.assertClose("overwritten", x, overwritten, Tolerances.rounded(DType.FLOAT32));
            Tensor added = open.tensor(DType.FLOAT32, before, count);
            Elementwise.accumulate(open.tensor(dtype, x, count), added, Output.ADD, open.stream());
            double[] expected = new double[count];
            for (int i = 0; i < count; i++) {
                expected[i] = before[i] + x[i];
            }
            open.assertClose("added", expected, open.read(added), 1, Tolerances.rounded(DType.FLOAT32));
        }
    }

    @ParameterizedTest
    @MethodSource("floats")
    void castIsRoundedToNearestEven(DType from) {
        for (DType to : floats()) {
            for (int count : COUNTS) {
                double[] x = open.normal(from, count, 100);
                Tensor y = open.unwritten(to, count);
                Elementwise.cast(open.tensor(from, x, count), y, open.stream());
                double[] expected = Rounding.round(x.clone(), to);
                float[] actual = open.read(y);
                for (int i = 0; i < count; i++) {
                    assertArrayEquals(new float[] {(float) expected[i]}, new float[] {actual[i]}, from + " to " + to);
                }
            }
        }
    }

    /** As many elements in another shape: a matrix of gradients into a flat buffer. */
    @Test
    void shapesMayDiffer() {
        Tensor x = open.tensor(DType.BFLOAT16, new double[] {1, 2, 3, 4, 5, 6}, 2, 3);
        Tensor y = open.unwritten(DType.FLOAT32, 6);
        Elementwise.accumulate(x, y, Output.OVERWRITE, open.stream());
        assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6}, open.read(y));
        Tensor cast = open.unwritten(DType.FLOAT16, 3, 2);
        Elementwise.cast(x, cast, open.stream());
        assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6}, open.read(cast));
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.FLOAT32, 4);
        Tensor y = of(DType.FLOAT32, 4);
        assertThrown(
                IllegalArgumentException.class,
                "residual: expected FLOAT32[4], got FLOAT32[5]",
                () -> Elementwise.add(x, of(DType.FLOAT32, 5), y, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected FLOAT32[4], got BFLOAT16[4]",
                () -> Elementwise.add(x, y, of(DType.BFLOAT16, 4), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "x: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[4]",
                () -> Elementwise.add(of(DType.INT32, 4), y, y, open.stream()));
        Tensor both = of(DType.FLOAT32, 6);
        Tensor second = open.scope().view(both, 2, 4);
        assertThrown(
                IllegalArgumentException.class,
                "y: expected memory of its own, got some of x" + SHARED,
                () -> Elementwise.add(open.scope().view(both, 0, 4), y, second, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected elements of FLOAT32, got BFLOAT16[4]",
                () -> Elementwise.accumulate(x, of(DType.BFLOAT16, 4), Output.ADD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected 4 elements, got FLOAT32[5]",
                () -> Elementwise.accumulate(x, of(DType.FLOAT32, 5), Output.ADD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected memory of its own, got some of x" + SHARED,
                () -> Elementwise.accumulate(x, x, Output.ADD, open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got BYTE[4]",
                () -> Elementwise.cast(x, of(DType.BYTE, 4), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected memory of its own, got some of x" + SHARED,
                () -> Elementwise.cast(x, x, open.stream()));
    }

    @ParameterizedTest
    @MethodSource("floats")
    void geluErf(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 3);
            double[] dy = open.normal(dtype, count, 1);
            double[] expected = new double[count];
            double[] gradient = new double[count];
            for (int i = 0; i < count; i++) {
                expected[i] = GeluWitness.exactValue(x[i]);
                gradient[i] = dy[i] * GeluWitness.exactDerivative(x[i]);
            }
            Tensor input = open.tensor(dtype, x, count);
            Tensor y = open.unwritten(dtype, count);
            Elementwise.geluErf(input, y, open.stream());
            open.assertClose("y", expected, open.read(y), 1, Tolerances.rounded(dtype));
            Tensor dx = open.tensor(dtype, dy, count);
            Elementwise.geluErfBackward(dx, input, dx, open.stream());
            open.assertClose("dx", gradient, open.read(dx), 1, Tolerances.rounded(dtype));
        }
    }

    @ParameterizedTest
    @MethodSource("floats")
    void tanh(DType dtype) {
        for (int count : COUNTS) {
            double[] x = open.normal(dtype, count, 2);
            double[] dy = open.normal(dtype, count, 1);
            double[] expected = new double[count];
            double[] gradient = new double[count];
            Tensor y = open.tensor(dtype, x, count);
            Elementwise.tanh(y, y, open.stream());
            float[] actual = open.read(y);
            for (int i = 0; i < count; i++) {
                expected[i] = Math.tanh(x[i]);
                gradient[i] = dy[i] * (1 - (double) actual[i] * actual[i]);
            }
            open.assertClose("y", expected, actual, 1, Tolerances.rounded(dtype));
            Tensor dx = open.tensor(dtype, dy, count);
            Elementwise.tanhBackward(dx, y, dx, open.stream());
            open.assertClose("dx", gradient, open.read(dx), 1, Tolerances.rounded(dtype));
        }
        assertThrown(
                IllegalArgumentException.class,
                "dy: expected " + dtype + "[3], got " + dtype + "[2]",
                () -> Elementwise.tanhBackward(
                        open.unwritten(dtype, 2), open.unwritten(dtype, 3), open.unwritten(dtype, 3), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "y: expected " + dtype + "[2], got " + dtype + "[3]",
                () -> Elementwise.tanh(open.unwritten(dtype, 2), open.unwritten(dtype, 3), open.stream()));
    }

    @Test
    void geluErfAtTheEnds() {
        double[] ends = {0, -0.0, Double.POSITIVE_INFINITY, Float.MAX_VALUE, -Float.MAX_VALUE, Double.NaN, -30};
        Tensor x = open.tensor(DType.FLOAT32, ends, ends.length);
        Tensor y = open.unwritten(DType.FLOAT32, ends.length);
        Elementwise.geluErf(x, y, open.stream());
        assertArrayEquals(
                new float[] {0, -0f, Float.POSITIVE_INFINITY, Float.MAX_VALUE, -0f, Float.NaN, -0f}, open.read(y));
        Tensor ones = open.tensor(DType.FLOAT32, new double[] {1, 1, 1, 1, 1, 1, 1}, ends.length);
        Elementwise.geluErfBackward(ones, x, y, open.stream());
        float[] slopes = open.read(y);
        assertArrayEquals(new float[] {0.5f, 0.5f, Float.NaN, 1, 0, Float.NaN, 0}, slopes, 1e-7f);
    }

    @Test
    void geluErfRefusals() {
        Tensor x = open.unwritten(DType.FLOAT32, 4);
        Tensor other = open.unwritten(DType.FLOAT32, 5);
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        assertThrown(
                argument, "y: expected FLOAT32[4], got FLOAT32[5]", () -> Elementwise.geluErf(x, other, open.stream()));
        assertThrown(
                argument,
                "dy: expected FLOAT32[4], got FLOAT32[5]",
                () -> Elementwise.geluErfBackward(other, x, x, open.stream()));
        assertThrown(
                argument,
                "dx: expected FLOAT32[4], got FLOAT32[5]",
                () -> Elementwise.geluErfBackward(x, x, other, open.stream()));
        assertThrown(
                argument,
                "x: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[4]",
                () -> Elementwise.geluErf(open.ints(1, 2, 3, 4), x, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, new double[8], 8);
        Tensor y = open.tensor(DType.FLOAT32, new double[8], 8);
        Allocation.assertNone("elementwise", () -> {
            Elementwise.add(x, x, x, open.stream());
            Elementwise.accumulate(x, y, Output.ADD, open.stream());
            Elementwise.cast(y, x, open.stream());
            Elementwise.geluErf(x, x, open.stream());
            Elementwise.geluErfBackward(x, x, x, open.stream());
        });
    }
}
