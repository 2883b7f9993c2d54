package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.witness.Float8Witness;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** The SiTU-GLU against double precision and finite differences. */
@Tag("L0")
@Tag("L1")
class SituGluConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, SituGlu situ, int rows, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (SituGlu situ : List.of(
                    SituGlu.standard(), SituGlu.standard().withBeta1(0.5f).withBeta2(2), new SituGlu(100, 0.75f))) {
                cases.add(new Case(dtype, situ, 33, 40));
                cases.add(new Case(dtype, situ, 1, 1));
                cases.add(new Case(dtype, situ, 7, 65));
            }
        }
        return cases;
    }

    private static double sigmoid(double x) {
        return 1 / (1 + Math.exp(-x));
    }

    private static double value(SituGlu situ, double a, double b) {
        return situ.beta1() * Math.tanh(a / situ.beta1()) * sigmoid(a) * situ.beta2() * Math.tanh(b / situ.beta2());
    }

    private static RealMatrix forward(SituGlu situ, RealMatrix x) {
        int columns = x.getColumnDimension() / 2;
        RealMatrix y = new BlockRealMatrix(x.getRowDimension(), columns);
        for (int i = 0; i < y.getRowDimension(); i++) {
            for (int j = 0; j < columns; j++) {
                y.setEntry(i, j, value(situ, x.getEntry(i, j), x.getEntry(i, columns + j)));
            }
        }
        return y;
    }

    private static RealMatrix backward(SituGlu situ, RealMatrix x, RealMatrix dy) {
        int columns = dy.getColumnDimension();
        RealMatrix dx = x.copy();
        for (int i = 0; i < dy.getRowDimension(); i++) {
            for (int j = 0; j < columns; j++) {
                double a = x.getEntry(i, j);
                double b = x.getEntry(i, columns + j);
                double t = Math.tanh(a / situ.beta1());
                double u = Math.tanh(b / situ.beta2());
                double s = sigmoid(a);
                double ofA = (1 - t * t) * s + situ.beta1() * t * s * sigmoid(-a);
                dx.setEntry(i, j, dy.getEntry(i, j) * ofA * situ.beta2() * u);
                dx.setEntry(i, columns + j, dy.getEntry(i, j) * situ.beta1() * t * s * (1 - u * u));
            }
        }
        return dx;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        RealMatrix x = open.normal(c.dtype, c.rows, 2 * c.columns, 2);
        RealMatrix dy = open.normal(c.dtype, c.rows, c.columns, 1);
        Tensor input = open.tensor(c.dtype, x);
        Tensor gradient = open.tensor(c.dtype, dy);
        Tensor y = open.unwritten(c.dtype, c.rows, c.columns);
        Tensor dx = open.unwritten(c.dtype, c.rows, 2L * c.columns);
        c.situ.forward(input, y, open.stream());
        open.assertClose("y", forward(c.situ, x), y, Tolerances.rounded(c.dtype));
        c.situ.backward(gradient, input, dx, open.stream());
        open.assertClose("dx", backward(c.situ, x, dy), dx, Tolerances.rounded(c.dtype));
        float[] written = open.read(dx);
        Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
        c.situ.backward(gradient, input, dx, amax, open.stream());
        assertArrayEquals(written, open.read(dx));
        open.assertClose(
                "amax", new double[] {largest(backward(c.situ, x, dy))}, amax, Tolerances.rounded(DType.FLOAT32));
    }

    private static double largest(RealMatrix x) {
        double largest = 0;
        for (double[] row : x.getData()) {
            for (double entry : row) {
                largest = Math.max(largest, Math.abs(entry));
            }
        }
        return largest;
    }

    /** The written formulas of the gradients are those of the value. */
    @Test
    void gradientsAreDifferences() {
        double step = 1e-5;
        for (SituGlu situ : List.of(SituGlu.standard(), new SituGlu(0.5f, 2))) {
            for (double a = -3; a <= 3; a += 0.375) {
                double b = 1.5 - a / 2;
                RealMatrix dx = backward(
                        situ,
                        MatrixUtils.createRowRealMatrix(new double[] {a, b}),
                        MatrixUtils.createRowRealMatrix(new double[] {1}));
                double ofA = (value(situ, a + step, b) - value(situ, a - step, b)) / (2 * step);
                double ofB = (value(situ, a, b + step) - value(situ, a, b - step)) / (2 * step);
                assertEquals(ofA, dx.getEntry(0, 0), 1e-8);
                assertEquals(ofB, dx.getEntry(0, 1), 1e-8);
            }
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void quantized(DType dtype) {
        RealMatrix x = open.normal(DType.BFLOAT16, 16, 64, 2);
        RealMatrix dy = open.normal(DType.BFLOAT16, 16, 32, 1);
        Tensor input = open.tensor(DType.BFLOAT16, x);
        QuantizedTensor y = Float8Matrix.empty(open, dtype, 16, 32, 30);
        SituGlu.standard().forward(input, y, open.stream());
        assertNear(forward(SituGlu.standard(), x), y, 30);
        QuantizedTensor dx = Float8Matrix.empty(open, dtype, 16, 64, 20);
        SituGlu.standard().backward(open.tensor(DType.BFLOAT16, dy), input, dx, open.stream());
        assertNear(backward(SituGlu.standard(), x, dy), dx, 20);
        Tensor plain = open.unwritten(DType.BFLOAT16, 16, 32);
        Tensor amax = open.tensor(DType.FLOAT32, new double[] {0}, 1);
        SituGlu.standard().forward(input, plain, amax, open.stream());
        assertArrayEquals(open.read(y.amax()), open.read(amax));
    }

    /** Each stored number is the nearest to what FP32 may have come to. */
    private static void assertNear(RealMatrix expected, QuantizedTensor actual, double scale) {
        double[] stored = Float8Witness.values(actual.rowwise().toBytes(open.stream()), actual.dtype());
        int columns = expected.getColumnDimension();
        for (int i = 0; i < stored.length; i++) {
            double exact = expected.getEntry(i / columns, i % columns);
            double error = 1e-6 * Math.max(1, Math.abs(exact));
            double low = Float8Witness.nearest((exact - error) * scale, actual.dtype());
            double high = Float8Witness.nearest((exact + error) * scale, actual.dtype());
            assertEquals(true, stored[i] >= low && stored[i] <= high, "element " + i + " is " + stored[i]);
        }
        CastConformance.assertTransposed(open, actual);
    }

    @Test
    void withoutRowsAndWithoutGarbage() {
        Tensor none = open.scope().tensor(DType.FLOAT32, 0, 16);
        Tensor nothing = open.scope().tensor(DType.FLOAT32, 0, 8);
        SituGlu.standard().forward(none, nothing, open.stream());
        SituGlu.standard().backward(nothing, none, open.scope().like(none), open.stream());
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 8, 16, 2));
        Tensor y = open.unwritten(DType.BFLOAT16, 8, 8);
        Tensor dx = open.unwritten(DType.BFLOAT16, 8, 16);
        Allocation.assertNone("SiTU-GLU", () -> {
            SituGlu.standard().forward(x, y, open.stream());
            SituGlu.standard().backward(y, x, dx, open.stream());
        });
    }

    @Test
    void refusesNumbersAndTensorsThatDoNotFit() {
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        for (float wrong : new float[] {0, -1, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    argument,
                    "beta1: expected a positive number, got " + wrong,
                    () -> SituGlu.standard().withBeta1(wrong));
            assertThrown(
                    argument,
                    "beta2: expected a positive number, got " + wrong,
                    () -> SituGlu.standard().withBeta2(wrong));
        }
        Tensor odd = open.scope().tensor(DType.BFLOAT16, 2, 5);
        Tensor x = open.scope().tensor(DType.BFLOAT16, 2, 6);
        Tensor y = open.scope().tensor(DType.BFLOAT16, 2, 3);
        assertThrown(
                argument,
                "x: expected [T, 2F] with an even number of columns, for SituGlu is beta1 tanh(a / beta1) sigmoid(a) beta2"
                        + " tanh(b / beta2), got BFLOAT16[2, 5]",
                () -> SituGlu.standard().forward(odd, y, open.stream()));
        assertThrown(
                argument,
                "y: expected BFLOAT16[T, 3], got BFLOAT16[2, 6]",
                () -> SituGlu.standard().forward(x, x, open.stream()));
        assertThrown(
                argument,
                "dx: expected BFLOAT16[2, 6], got BFLOAT16[2, 3]",
                () -> SituGlu.standard().backward(y, x, y, open.stream()));
    }
}
