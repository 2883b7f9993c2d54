package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.ArrayList;
import java.util.List;
import java.util.function.DoubleBinaryOperator;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code ScaledActivation} against double precision, its gradients against differences of the value, and what it refuses. */
@Tag("L0")
@Tag("L1")
class ScaledActivationConformance {
    private static final SituGlu SITU = new SituGlu(3, 2);
    private static final ClampedSwiglu CLAMPED = new ClampedSwiglu(2.03f, 1.7f, 1);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    enum Function {
        SWIGLU(2, (a, b) -> a * sigmoid(a) * b),
        SITUGLU(2, (a, b) -> 3 * Math.tanh(a / 3) * sigmoid(a) * 2 * Math.tanh(b / 2)),
        CLAMPED_SWIGLU(2, (a, b) -> {
            double gate = Math.min(a, CLAMPED.limit());
            double linear = Math.max(-CLAMPED.limit(), Math.min(b, CLAMPED.limit()));
            return gate * sigmoid(CLAMPED.alpha() * gate) * (linear + 1);
        }),
        SRELU(1, (a, b) -> a > 0 ? a * a : 0);

        final int width;
        final DoubleBinaryOperator value;

        Function(int width, DoubleBinaryOperator value) {
            this.width = width;
            this.value = value;
        }

        void forward(Tensor x, Tensor scales, Tensor y, GluLayout layout) {
            switch (this) {
                case SWIGLU -> ScaledActivation.forward(Activation.SWIGLU, x, scales, y, layout, open.stream());
                case SITUGLU -> ScaledActivation.forward(SITU, x, scales, y, layout, open.stream());
                case CLAMPED_SWIGLU -> ScaledActivation.forward(CLAMPED, x, scales, y, layout, open.stream());
                case SRELU -> ScaledActivation.forward(Activation.SRELU, x, scales, y, layout, open.stream());
            }
        }

        void backward(Tensor dy, Tensor x, Tensor scales, Tensor dx, @Nullable Tensor dscales, GluLayout layout) {
            switch (this) {
                case SWIGLU ->
                    ScaledActivation.backward(Activation.SWIGLU, dy, x, scales, dx, dscales, layout, open.stream());
                case SITUGLU -> ScaledActivation.backward(SITU, dy, x, scales, dx, dscales, layout, open.stream());
                case CLAMPED_SWIGLU ->
                    ScaledActivation.backward(CLAMPED, dy, x, scales, dx, dscales, layout, open.stream());
                case SRELU ->
                    ScaledActivation.backward(Activation.SRELU, dy, x, scales, dx, dscales, layout, open.stream());
            }
        }

        private static double sigmoid(double x) {
            return 1 / (1 + Math.exp(-x));
        }
    }

    record Case(Function function, DType dtype, DType scales, int rows, int columns, GluLayout layout) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Function function : Function.values()) {
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                cases.add(new Case(function, dtype, DType.FLOAT32, 37, 17, GluLayout.HALVES));
                cases.add(new Case(function, dtype, DType.FLOAT32, 1, 1, GluLayout.HALVES));
                cases.add(new Case(function, dtype, dtype, 5, 1032, GluLayout.HALVES));
                cases.add(new Case(function, dtype, DType.BFLOAT16, 6, 96, GluLayout.interleaved(32)));
                cases.add(new Case(function, dtype, DType.FLOAT16, 2, 128, GluLayout.interleaved(64)));
            }
        }
        return cases;
    }

    /** Returns where a of column {@code column} is in a row of the input. */
    private static int placeOfA(Case c, int column) {
        int segment = c.layout.interleaveSize() == 0 ? c.columns : c.layout.interleaveSize();
        return column / segment * segment * c.function.width + column % segment;
    }

    private static int placeOfB(Case c, int column) {
        return placeOfA(c, column) + (c.layout.interleaveSize() == 0 ? c.columns : c.layout.interleaveSize());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        int width = c.columns * c.function.width;
        double[] x = open.normal(c.dtype, c.rows * width, 2);
        double[] dy = open.normal(c.dtype, c.rows * c.columns, 1);
        double[] scales = open.normal(c.scales, c.rows, 1);
        double[] y = new double[dy.length];
        double[] dx = new double[x.length];
        double[] dscales = new double[c.rows];
        double step = 1e-6;
        for (int i = 0; i < y.length; i++) {
            int row = i / c.columns;
            int atA = row * width + placeOfA(c, i % c.columns);
            int atB = row * width + placeOfB(c, i % c.columns);
            double a = x[atA];
            double b = c.function.width == 1 ? 0 : x[atB];
            DoubleBinaryOperator f = c.function.value;
            double value = f.applyAsDouble(a, b);
            double factor = dy[i] * scales[row] / (2 * step);
            y[i] = value * scales[row];
            dx[atA] = factor * (f.applyAsDouble(a + step, b) - f.applyAsDouble(a - step, b));
            if (c.function.width == 2) {
                dx[atB] = factor * (f.applyAsDouble(a, b + step) - f.applyAsDouble(a, b - step));
            }
            dscales[row] += dy[i] * value;
        }
        Tensor input = open.tensor(c.dtype, x, c.rows, width);
        Tensor factors = open.tensor(c.scales, scales, c.rows);
        Tensor output = open.unwritten(c.dtype, c.rows, c.columns);
        c.function.forward(input, factors, output, c.layout);
        open.assertClose("output", y, output, Tolerances.rounded(c.dtype));
        Tensor grad = open.tensor(c.dtype, dy, c.rows, c.columns);
        Tensor gradInput = open.unwritten(c.dtype, c.rows, width);
        Tensor gradScales = open.unwritten(c.scales, c.rows);
        c.function.backward(grad, input, factors, gradInput, gradScales, c.layout);
        open.assertClose("gradInput", dx, gradInput, Tolerances.rounded(c.dtype));
        double magnitude = 4 * Math.sqrt(c.columns);
        open.assertClose("gradActScales", dscales, open.read(gradScales), magnitude, Tolerances.rounded(c.scales));
        float[] written = open.read(gradInput);
        Tensor alone = open.unwritten(c.dtype, c.rows, width);
        c.function.backward(grad, input, factors, alone, null, c.layout);
        assertArrayEquals(written, open.read(alone), "without gradients of factors");
    }

    /** Types of a call are free: what is stored alone is rounded. */
    @ParameterizedTest
    @EnumSource
    void typesOfTheirOwn(Function function) {
        double[] x = open.normal(DType.BFLOAT16, 9 * 32 * function.width, 1);
        double[] scales = open.normal(DType.FLOAT16, 9, 1);
        Tensor factors = open.tensor(DType.FLOAT16, scales, 9);
        Tensor wide = open.unwritten(DType.FLOAT32, 9, 32);
        function.forward(open.tensor(DType.FLOAT32, x, 9, 32L * function.width), factors, wide, GluLayout.HALVES);
        Tensor mixed = open.unwritten(DType.FLOAT32, 9, 32);
        function.forward(open.tensor(DType.BFLOAT16, x, 9, 32L * function.width), factors, mixed, GluLayout.HALVES);
        assertArrayEquals(open.read(wide), open.read(mixed));
    }

    @Test
    void nanAndInfinity() {
        double nan = Double.NaN;
        double[] x = {nan, 1, 1, 1, 1, nan, 1, 1};
        Tensor input = open.tensor(DType.FLOAT32, x, 2, 4);
        Tensor factors = open.tensor(DType.FLOAT32, new double[] {1, Double.POSITIVE_INFINITY}, 2);
        Tensor output = open.unwritten(DType.FLOAT32, 2, 2);
        ScaledActivation.forward(Activation.SWIGLU, input, factors, output, GluLayout.HALVES, open.stream());
        float[] y = open.read(output);
        assertArrayEquals(
                new boolean[] {true, false, false, true},
                new boolean[] {Float.isNaN(y[0]), Float.isNaN(y[1]), Float.isNaN(y[2]), Float.isNaN(y[3])});
        assertArrayEquals(new boolean[] {false, true}, new boolean[] {Float.isInfinite(y[1]), Float.isInfinite(y[2])});
    }

    @ParameterizedTest
    @EnumSource
    void withoutElementsAndWithoutGarbage(Function function) {
        Tensor none = open.scope().tensor(DType.FLOAT32, 0, 16);
        Tensor nothing = open.scope().tensor(DType.FLOAT32, 0, 16L * function.width);
        Tensor noFactors = open.scope().tensor(DType.FLOAT32, 0);
        function.forward(nothing, noFactors, none, GluLayout.HALVES);
        function.backward(none, nothing, noFactors, open.scope().like(nothing), noFactors, GluLayout.HALVES);
        Tensor empty = open.scope().tensor(DType.FLOAT32, 3, 0);
        Tensor sums = open.unwritten(DType.FLOAT32, 3);
        Tensor three = open.tensor(DType.FLOAT32, new double[] {1, 2, 3}, 3);
        function.backward(empty, empty, three, open.scope().like(empty), sums, GluLayout.HALVES);
        assertArrayEquals(new float[3], open.read(sums));
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 4, 64 * function.width, 1));
        Tensor y = open.unwritten(DType.BFLOAT16, 4, 64);
        Tensor dx = open.scope().like(x);
        Tensor factors = open.tensor(DType.FLOAT32, new double[] {1, 2, 3, 4}, 4);
        Tensor gradients = open.unwritten(DType.FLOAT32, 4);
        GluLayout layout = GluLayout.interleaved(32);
        Allocation.assertNone(function.name(), () -> {
            function.forward(x, factors, y, layout);
            function.backward(y, x, factors, dx, gradients, layout);
        });
    }

    private static void refused(String text, Tensor x, Tensor scales, Tensor y, GluLayout layout) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> ScaledActivation.forward(Activation.SWIGLU, x, scales, y, layout, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = open.scope().tensor(DType.BFLOAT16, 4, 96);
        Tensor y = open.scope().tensor(DType.BFLOAT16, 4, 48);
        Tensor scales = open.scope().tensor(DType.FLOAT32, 4);
        GluLayout halves = GluLayout.HALVES;
        refused("input: expected [4, 96] for output BFLOAT16[4, 48], got BFLOAT16[4, 48]", y, scales, y, halves);
        refused(
                "actScales: expected [4], one per row, got FLOAT32[3]",
                x,
                open.scope().tensor(DType.FLOAT32, 3),
                y,
                halves);
        refused(
                "output: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT8_E4M3[4, 48]",
                x,
                scales,
                open.scope().tensor(DType.FLOAT8_E4M3, 4, 48),
                halves);
        refused(
                "layout: expected an interleave size that divides the 48 columns of output, got 32",
                x,
                scales,
                y,
                GluLayout.interleaved(32));
        refused(
                "output: expected memory of its own, got some of input's; it is written to while that is read or"
                        + " written",
                x,
                scales,
                open.scope().view(x, 0, 4, 48),
                halves);
    }

    @Test
    void refusesActivationsWithoutFactors() {
        Tensor x = open.scope().tensor(DType.BFLOAT16, 4, 48);
        Tensor scales = open.scope().tensor(DType.FLOAT32, 4);
        assertThrown(
                IllegalArgumentException.class,
                "activation: expected SWIGLU, SRELU, a SituGlu or a ClampedSwiglu, which TE has with factors, got GELU",
                () -> ScaledActivation.forward(Activation.GELU, x, scales, x, GluLayout.HALVES, open.stream()));
    }

    @Test
    void refusalsOfBackward() {
        Tensor x = open.scope().tensor(DType.BFLOAT16, 4, 48);
        Tensor scales = open.scope().tensor(DType.FLOAT32, 4);
        Tensor dx = open.scope().like(x);
        refusedBackward(
                "gradInput: expected [4, 48] for grad BFLOAT16[4, 48], got BFLOAT16[4, 96]",
                x,
                scales,
                open.scope().tensor(DType.BFLOAT16, 4, 96),
                null);
        refusedBackward(
                "gradActScales: expected [4], one per row, got FLOAT32[4, 1]",
                x,
                scales,
                dx,
                open.scope().tensor(DType.FLOAT32, 4, 1));
        refusedBackward(
                "gradActScales: expected memory of its own, got some of actScales's; it is written to while that is"
                        + " read or written",
                x,
                scales,
                dx,
                scales);
        refusedBackward(
                "gradInput: expected memory of its own, got some of input's; it is written to while that is read or"
                        + " written",
                x,
                scales,
                x,
                null);
    }

    private static void refusedBackward(
            String text, Tensor x, Tensor scales, Tensor dx, @Nullable Tensor gradActScales) {
        Tensor dy = open.scope().tensor(DType.BFLOAT16, 4, 48);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> ScaledActivation.backward(
                        Activation.SRELU, dy, x, scales, dx, gradActScales, GluLayout.HALVES, open.stream()));
    }

    @Test
    void refusalsOfLayouts() {
        Class<IllegalArgumentException> argument = IllegalArgumentException.class;
        assertThrown(
                argument,
                "interleaveSize: expected 0, which stands for halves, or a multiple of 32, got 33",
                () -> new GluLayout(33));
        assertThrown(
                argument, "interleaveSize: expected a positive multiple of 32, got 0", () -> GluLayout.interleaved(0));
    }
}
