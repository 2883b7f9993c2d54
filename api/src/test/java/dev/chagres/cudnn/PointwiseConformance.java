package dev.chagres.cudnn;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import java.util.Arrays;
import java.util.List;
import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;
import org.apache.commons.math3.special.Erf;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Every pointwise mode against double precision; gradients against differences of the forward formula. */
@Tag("L0")
@Tag("L1")
class PointwiseConformance {
    private static final double STEP = 1e-5;

    private static final boolean ON_GPU = Provider.current() == Provider.CUDA;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final PointwiseConfig CONFIG = PointwiseConfig.DEFAULT
            .withClip(new PointwiseConfig.Clip(0, 1.51, 0.25))
            .withEluAlpha(0.75)
            .withBeta(1.25);

    private static DoubleUnaryOperator unary(PointwiseMode mode) {
        return switch (mode) {
            case SQRT -> Math::sqrt;
            case ABS -> Math::abs;
            case CEIL -> Math::ceil;
            case COS -> Math::cos;
            case EXP -> Math::exp;
            case FLOOR -> Math::floor;
            case LOG -> Math::log;
            case NEG -> x -> -x;
            case RSQRT -> x -> 1 / Math.sqrt(x);
            case SIN -> Math::sin;
            case TAN -> Math::tan;
            case ERF -> Erf::erf;
            case IDENTITY -> x -> x;
            case RECIPROCAL -> x -> 1 / x;
            case RELU_FWD -> x -> x < 0 ? 0.25 * x : Math.min(x, 1.51);
            case TANH_FWD -> Math::tanh;
            case SIGMOID_FWD -> x -> 1 / (1 + Math.exp(-x));
            case ELU_FWD -> x -> x > 0 ? x : 0.75 * (Math.exp(x) - 1);
            case GELU_FWD -> x -> x * (1 - 0.5 * Erf.erfc(x / Math.sqrt(2)));
            case SOFTPLUS_FWD -> x -> Math.log(1 + Math.exp(1.25 * x)) / 1.25;
            case SWISH_FWD -> x -> x / (1 + Math.exp(-1.25 * x));
            case GELU_APPROX_TANH_FWD ->
                x -> 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)));
            case LOGICAL_NOT -> x -> x == 0 ? 1 : 0;
            default -> throw new AssertionError(mode);
        };
    }

    private static DoubleBinaryOperator binary(PointwiseMode mode) {
        return switch (mode) {
            case ADD -> Double::sum;
            case MUL -> (x, b) -> x * b;
            case MIN -> Math::min;
            case MAX -> Math::max;
            case ADD_SQUARE -> (x, b) -> x + b * b;
            case DIV -> (x, b) -> x / b;
            case MOD -> (x, b) -> x % b;
            case POW -> Math::pow;
            case SUB -> (x, b) -> x - b;
            case ATAN2 -> Math::atan2;
            case CMP_EQ -> (x, b) -> x == b ? 1 : 0;
            case CMP_NEQ -> (x, b) -> x == b ? 0 : 1;
            case CMP_GT -> (x, b) -> x > b ? 1 : 0;
            case CMP_GE -> (x, b) -> x >= b ? 1 : 0;
            case CMP_LT -> (x, b) -> x < b ? 1 : 0;
            case CMP_LE -> (x, b) -> x <= b ? 1 : 0;
            case LOGICAL_AND -> (x, b) -> x * b;
            case LOGICAL_OR -> Math::max;
            default -> throw new AssertionError(mode);
        };
    }

    private static boolean wantsPositive(PointwiseMode mode) {
        return switch (mode) {
            case SQRT, LOG, RSQRT, RECIPROCAL, POW, DIV, MOD -> true;
            default -> false;
        };
    }

    private static boolean isLogical(PointwiseMode mode) {
        return mode == PointwiseMode.LOGICAL_AND
                || mode == PointwiseMode.LOGICAL_OR
                || mode == PointwiseMode.LOGICAL_NOT;
    }

    private static GraphTensor input(GraphWitness graph, PointwiseMode mode, String name, DType dtype, long... dims) {
        int count = (int) GraphWitness.count(dims);
        if (isLogical(mode)) {
            double[] truths = new double[count];
            Arrays.setAll(truths, i -> open.random().nextInt(2));
            return graph.input(graph.builder.tensor(name, DataType.BOOLEAN, dims), truths);
        }
        double[] values = open.normal(dtype, count, 1);
        for (int i = 0; i < count; i++) {
            values[i] = wantsPositive(mode) ? Math.abs(values[i]) + 0.5 : values[i];
            // Equal numbers, for comparisons.
            values[i] = mode.name().startsWith("CMP") && i % 3 == 0 ? 0.5 : values[i];
        }
        double[] rounded = dev.chagres.witness.Rounding.round(values, dtype);
        return graph.input(name, dtype, rounded, dims);
    }

    @ParameterizedTest
    @EnumSource(PointwiseMode.class)
    void everyMode(PointwiseMode mode) {
        int supported = 0;
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            GraphWitness graph = new GraphWitness(open, mode + " " + dtype);
            long[] dims = {2, 16, 64};
            GraphTensor y;
            if (mode.isBackward()) {
                DoubleUnaryOperator forward =
                        unary(PointwiseMode.valueOf(mode.name().replace("BWD", "FWD")));
                GraphTensor dy = input(graph, mode, "dy", dtype, dims);
                GraphTensor x = input(graph, mode, "x", dtype, dims);
                y = graph.binary(
                        "y",
                        mode,
                        CONFIG,
                        dy,
                        x,
                        (g, at) ->
                                g * (forward.applyAsDouble(at + STEP) - forward.applyAsDouble(at - STEP)) / (2 * STEP));
            } else if (mode == PointwiseMode.GEN_INDEX) {
                GraphTensor x = input(graph, mode, "x", dtype, dims);
                y = graph.builder.pointwise("y", mode, PointwiseConfig.DEFAULT.withAxis(1), x);
                double[] indices = new double[2 * 16 * 64];
                Arrays.setAll(indices, i -> i / 64 % 16);
                graph.put(y, indices);
            } else if (mode == PointwiseMode.BINARY_SELECT) {
                y = select(graph, dtype, dims);
            } else if (mode.inputs() == 1) {
                y = graph.unary("y", mode, CONFIG, input(graph, mode, "x", dtype, dims), unary(mode));
            } else {
                GraphTensor x = input(graph, mode, "x", dtype, dims);
                y = graph.binary("y", mode, x, input(graph, mode, "b", dtype, 2, 1, 64), binary(mode));
            }
            boolean whole = mode.kind() != PointwiseMode.Kind.FORWARD && !mode.isBackward();
            graph.builder.output(y, whole ? y.type() : DataType.of(dtype));
            supported += graph.check(tolerance(mode, whole ? DType.FLOAT32 : dtype)) ? 1 : 0;
        }
        System.out.println(mode + ": " + supported + " of 3 types have an engine");
        assertTrue(supported > 0 || hasTruths(mode), mode + " has no engine");
    }

    /** Truths in memory are refused on a GPU. */
    private static boolean hasTruths(PointwiseMode mode) {
        return ON_GPU
                && (mode == PointwiseMode.BINARY_SELECT
                        || mode.kind() != PointwiseMode.Kind.FORWARD
                                && !mode.isBackward()
                                && mode != PointwiseMode.GEN_INDEX);
    }

    /** Differences of the forward formula are exact to some 1e-10; a tangent may be steep, and a GPU has a fast tangent and tanh. */
    private static Tolerance tolerance(PointwiseMode mode, DType dtype) {
        Tolerance rounded = Tolerances.rounded(dtype);
        if (mode == PointwiseMode.TAN) {
            return new Tolerance(
                    "tangent", rounded.frobenius() * (ON_GPU ? 64 : 4), rounded.element() * (ON_GPU ? 64 : 4));
        }
        return ON_GPU && mode.name().contains("TANH")
                ? new Tolerance("fast tanh", rounded.frobenius() * 4, rounded.element() * 4)
                : rounded;
    }

    @Test
    void aComparisonThatStaysInsideTheGraphChooses() {
        GraphWitness graph = new GraphWitness(open, "larger");
        GraphTensor x = graph.normal("x", DType.FLOAT32, 2, 16, 64);
        GraphTensor b = graph.normal("b", DType.FLOAT32, 2, 16, 64);
        GraphTensor larger = graph.builder.pointwise("larger", PointwiseMode.CMP_GT, x, b);
        GraphTensor y = graph.builder.pointwise("y", PointwiseMode.BINARY_SELECT, x, b, larger);
        double[] chosen = new double[2 * 16 * 64];
        Arrays.setAll(chosen, i -> Math.max(graph.of(x)[i], graph.of(b)[i]));
        graph.builder.output(graph.put(y, chosen));
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    private static GraphTensor select(GraphWitness graph, DType dtype, long... dims) {
        GraphTensor x = graph.normal("x", dtype, dims);
        GraphTensor b = graph.normal("b", dtype, dims);
        double[] truths = new double[(int) GraphWitness.count(dims)];
        Arrays.setAll(truths, i -> open.random().nextInt(2));
        GraphTensor t = graph.input(graph.builder.tensor("t", DataType.BOOLEAN, dims), truths);
        GraphTensor y = graph.builder.pointwise("y", PointwiseMode.BINARY_SELECT, x, b, t);
        double[] chosen = new double[truths.length];
        Arrays.setAll(chosen, i -> truths[i] != 0 ? graph.of(x)[i] : graph.of(b)[i]);
        return graph.put(y, chosen);
    }

    @Test
    void factorsOfBothInputs() {
        GraphWitness graph = new GraphWitness(open, "factors");
        GraphTensor x = graph.normal("x", DType.FLOAT32, 4, 8, 32);
        GraphTensor b = graph.normal("b", DType.FLOAT32, 1, 8, 1);
        GraphTensor y = graph.binary(
                "y", PointwiseMode.ADD, PointwiseConfig.DEFAULT.withFactors(2, -0.5f), x, b, (p, q) -> 2 * p - 0.5 * q);
        graph.builder.output(y);
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void clipsGoOnWithTheirSlope() {
        GraphWitness graph = new GraphWitness(open, "clips");
        GraphTensor x = graph.normal("x", DType.FLOAT32, 4, 8, 32);
        PointwiseConfig config = PointwiseConfig.DEFAULT.withClip(new PointwiseConfig.Clip(0.5, 1, 0.125));
        GraphTensor y = graph.unary(
                "y", PointwiseMode.RELU_FWD, config, x, p -> p < 0.5 ? 0.5 + 0.125 * (p - 0.5) : Math.min(p, 1));
        graph.builder.output(y);
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void specialNumbers() {
        GraphWitness graph = new GraphWitness(open, "special");
        double[] values = {Double.NaN, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, 0, -0.0, 1e-40, 3e38, -3e38};
        GraphTensor x = graph.input("x", DType.FLOAT32, values, 1, 1, 8);
        GraphTensor y = graph.unary("y", PointwiseMode.EXP, x, Math::exp);
        GraphTensor z = graph.binary("z", PointwiseMode.ADD, y, x, Double::sum);
        double[] doubled = graph.of(z).clone();
        for (int i = 0; i < doubled.length; i++) {
            doubled[i] = (float) doubled[i];
        }
        graph.put(z, doubled);
        graph.put(y, Arrays.stream(graph.of(y)).map(v -> (float) v).toArray());
        graph.builder.output(z);
        graph.check(Tolerances.rounded(DType.FLOAT32));
    }
}
