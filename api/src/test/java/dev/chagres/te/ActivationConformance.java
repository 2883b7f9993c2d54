package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.DoubleUnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Activation}: all twelve against double precision, their gradients against the derivatives of the formulas. */
@Tag("L0")
@Tag("L1")
class ActivationConformance {
    private static final double LIMIT = 7;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** y [tokens, columns]. */
    record Case(Activation activation, DType dtype, int tokens, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Activation activation : Activation.values()) {
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                for (int[] size : new int[][] {{1, 1}, {3, 5}, {17, 63}, {64, 64}, {5, 129}, {1, 1024}}) {
                    cases.add(new Case(activation, dtype, size[0], size[1]));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        Halves x = new Halves(c);
        int count = c.tokens * c.columns;
        Tensor input = open.tensor(c.dtype, x.interleaved(), c.tokens, c.activation.inputColumns(c.columns));
        Tensor y = open.unwritten(c.dtype, c.tokens, c.columns);
        c.activation.forward(input, y, open.stream());
        DoubleUnaryOperator f = function(c.activation);
        double[] expected = new double[count];
        for (int i = 0; i < count; i++) {
            expected[i] = f.applyAsDouble(x.a[i]) * x.factor(i);
        }
        open.assertClose("y", expected, open.read(y), 1, Tolerances.rounded(c.dtype));

        double[] dy = open.normal(c.dtype, count, 1);
        Tensor dx = open.unwritten(c.dtype, c.tokens, c.activation.inputColumns(c.columns));
        c.activation.backward(open.tensor(c.dtype, dy, c.tokens, c.columns), input, dx, open.stream());
        Halves gradient = new Halves(c);
        for (int i = 0; i < count; i++) {
            gradient.a[i] = dy[i] * derivative(c.activation, x.a[i]) * x.factor(i);
            gradient.b[i] = dy[i] * f.applyAsDouble(x.a[i]) * x.slopeOfFactor(i);
        }
        open.assertClose("dx", gradient.interleaved(), open.read(dx), 1, Tolerances.rounded(c.dtype));
    }

    /** The input of an activation, or its gradient: one part, or two by halves of the columns. */
    private static final class Halves {
        private final Case c;
        private final double[] a;
        private final double[] b;

        Halves(Case c) {
            this.c = c;
            // Some lie behind the limits of the clamped one.
            a = open.normal(c.dtype, c.tokens * c.columns, 4);
            b = open.normal(c.dtype, c.tokens * c.columns, 4);
        }

        double[] interleaved() {
            if (!c.activation.isGated()) {
                return a;
            }
            double[] both = new double[2 * a.length];
            for (int row = 0; row < c.tokens; row++) {
                System.arraycopy(a, row * c.columns, both, 2 * row * c.columns, c.columns);
                System.arraycopy(b, row * c.columns, both, (2 * row + 1) * c.columns, c.columns);
            }
            return both;
        }

        double factor(int i) {
            if (!c.activation.isGated()) {
                return 1;
            }
            return c.activation == Activation.CLAMPED_SWIGLU ? Math.clamp(b[i], -LIMIT, LIMIT) + 1 : b[i];
        }

        double slopeOfFactor(int i) {
            return c.activation == Activation.CLAMPED_SWIGLU && Math.abs(b[i]) > LIMIT ? 0 : 1;
        }
    }

    private static DoubleUnaryOperator function(Activation activation) {
        return switch (activation) {
            case GELU, GEGLU -> x -> x / 2 * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
            case GLU -> ActivationConformance::sigmoid;
            case QGELU, QGEGLU -> x -> x * sigmoid(1.702 * x);
            case RELU, REGLU -> x -> Math.max(x, 0);
            case SRELU, SREGLU -> x -> Math.max(x, 0) * Math.max(x, 0);
            case SILU, SWIGLU -> x -> x * sigmoid(x);
            case CLAMPED_SWIGLU -> x -> Math.min(x, LIMIT) * sigmoid(1.702 * Math.min(x, LIMIT));
        };
    }

    /** Central differences of the formula, which is smooth but at 0 and at the limit. */
    private static double derivative(Activation activation, double x) {
        boolean kinked = activation == Activation.RELU || activation == Activation.REGLU;
        if (kinked) {
            return x > 0 ? 1 : 0;
        }
        if (activation == Activation.CLAMPED_SWIGLU && x > LIMIT) {
            return 0;
        }
        double step = 1e-5;
        DoubleUnaryOperator f =
                activation == Activation.CLAMPED_SWIGLU ? function(Activation.QGEGLU) : function(activation);
        return (f.applyAsDouble(x + step) - f.applyAsDouble(x - step)) / (2 * step);
    }

    private static double sigmoid(double x) {
        return 1 / (1 + Math.exp(-x));
    }

    @ParameterizedTest
    @EnumSource
    void namesWhatItCalls(Activation activation) {
        String stem = activation.name().toLowerCase(java.util.Locale.ROOT);
        boolean clamped = activation == Activation.CLAMPED_SWIGLU;
        assertEquals(clamped ? "te_clamped_swiglu_v2" : "te_" + stem, activation.forwardFunction());
        assertEquals(clamped ? "te_clamped_dswiglu_v2" : "te_d" + stem, activation.backwardFunction());
        assertEquals(stem.endsWith("glu"), activation.isGated());
        assertEquals(activation.isGated() ? 10 : 5, activation.inputColumns(5));
        assertEquals(
                activation.isGated(),
                activation.formula().contains("c + 1") || activation.formula().endsWith(" b"));
    }

    @ParameterizedTest
    @EnumSource(
            mode = EnumSource.Mode.MATCH_NONE,
            names = {".*GLU"})
    void inPlace(Activation activation) {
        double[] x = open.normal(DType.BFLOAT16, 129, 1);
        double[] dy = open.normal(DType.BFLOAT16, 129, 1);
        Tensor input = open.tensor(DType.BFLOAT16, x, 3, 43);
        Tensor y = open.unwritten(DType.BFLOAT16, 3, 43);
        activation.forward(input, y, open.stream());
        Tensor place = open.tensor(DType.BFLOAT16, x, 3, 43);
        activation.forward(place, place, open.stream());
        assertEquals(Arrays.toString(open.read(y)), Arrays.toString(open.read(place)));

        Tensor dx = open.unwritten(DType.BFLOAT16, 3, 43);
        activation.backward(open.tensor(DType.BFLOAT16, dy, 3, 43), input, dx, open.stream());
        Tensor overDy = open.tensor(DType.BFLOAT16, dy, 3, 43);
        activation.backward(overDy, input, overDy, open.stream());
        assertEquals(Arrays.toString(open.read(dx)), Arrays.toString(open.read(overDy)));
        activation.backward(open.tensor(DType.BFLOAT16, dy, 3, 43), input, input, open.stream());
        assertEquals(Arrays.toString(open.read(dx)), Arrays.toString(open.read(input)));
    }

    @ParameterizedTest
    @EnumSource
    void withoutElements(Activation activation) {
        long columns = activation.inputColumns(8);
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            Tensor x = open.scope().tensor(dtype, 0, columns);
            Tensor y = open.scope().tensor(dtype, 0, 8);
            activation.forward(x, y, open.stream());
            activation.backward(y, x, open.scope().tensor(dtype, 0, columns), open.stream());
        }
        open.stream().synchronize();
    }

    @Test
    void anyShapeWhereNotGated() {
        Tensor x = open.tensor(DType.FLOAT32, new double[] {-1, 0, 2, 3, 4, 5, 6, 7}, 2, 2, 2);
        Tensor y = open.unwritten(DType.FLOAT32, 2, 2, 2);
        Activation.RELU.forward(x, y, open.stream());
        assertEquals("[0.0, 0.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]", Arrays.toString(open.read(y)));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.FLOAT32, 3, 8);
        Tensor y = of(DType.FLOAT32, 3, 4);
        String tail = "'s; it is written to while that is read or written";
        refused(
                "x: expected [T, 2F] with an even number of columns, for SWIGLU is a sigmoid(a) b, got FLOAT32[3, 7]",
                Activation.SWIGLU,
                of(DType.FLOAT32, 3, 7),
                y);
        refused("y: expected FLOAT32[T, 4], got FLOAT32[3, 8]", Activation.SWIGLU, x, x);
        refused("y: expected FLOAT32[3, 8], got FLOAT32[3, 4]", Activation.GELU, x, y);
        refused("y: expected FLOAT32[3, 8], got BFLOAT16[3, 8]", Activation.GELU, x, of(DType.BFLOAT16, 3, 8));
        refused(
                "x: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[3, 8]",
                Activation.RELU,
                of(DType.INT32, 3, 8),
                y);
        refused(
                "y: expected memory of its own, got some of x" + tail,
                Activation.GLU,
                x,
                open.scope().view(x, 0, 3, 4));
        Tensor twice = of(DType.FLOAT32, 12);
        refused(
                "y: expected memory of its own, got some of x" + tail,
                Activation.SILU,
                open.scope().view(twice, 0, 8),
                open.scope().view(twice, 4, 8));
        assertThrown(
                IllegalArgumentException.class,
                "dy: expected FLOAT32[T, 4], got FLOAT32[3, 8]",
                () -> Activation.GEGLU.backward(x, x, of(DType.FLOAT32, 3, 8), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "dx: expected FLOAT32[3, 8], got FLOAT32[3, 4]",
                () -> Activation.GEGLU.backward(y, x, of(DType.FLOAT32, 3, 4), open.stream()));
        assertThrown(
                IllegalArgumentException.class,
                "dx: expected memory of its own, got some of x" + tail,
                () -> Activation.GEGLU.backward(y, x, x, open.stream()));
    }

    private static void refused(String text, Activation activation, Tensor x, Tensor y) {
        assertThrown(IllegalArgumentException.class, text, () -> activation.forward(x, y, open.stream()));
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    @Test
    void makesNoGarbage() {
        Tensor x = of(DType.BFLOAT16, 16, 64);
        Tensor y = of(DType.BFLOAT16, 16, 32);
        Tensor dx = of(DType.BFLOAT16, 16, 64);
        x.zero(open.stream());
        Allocation.assertNone("activations", () -> {
            Activation.GELU.forward(x, x, open.stream());
            Activation.GELU.backward(x, x, dx, open.stream());
            Activation.SWIGLU.forward(x, y, open.stream());
            Activation.SWIGLU.backward(y, x, dx, open.stream());
        });
    }
}
