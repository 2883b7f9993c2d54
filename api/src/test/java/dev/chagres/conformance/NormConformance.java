package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.LayerNormLinear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.layer.NormLayer;
import dev.chagres.layer.RmsNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.Normalization;
import dev.chagres.te.Normalization.Gamma;
import dev.chagres.witness.LinearWitness;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Rounding;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code LayerNorm}, {@code RmsNorm} and {@code LayerNormLinear} against double precision. */
@Tag("L0")
@Tag("L1")
class NormConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final DType[] FLOATS = {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16};

    record Case(DType dtype, Kind kind, Gamma gamma, int tokens, int size) {
        Case(DType dtype, Kind kind, int tokens, int size) {
            this(dtype, kind, Gamma.PLAIN, tokens, size);
        }
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : FLOATS) {
            for (Kind kind : Kind.values()) {
                for (int tokens : Sizes.TOKENS) {
                    cases.add(new Case(dtype, kind, tokens, 64));
                }
                cases.add(new Case(dtype, kind, Gamma.ZERO_CENTERED, 17, 64));
                for (int size : new int[] {16, 128, 320, 768, 1024, 1280}) {
                    cases.add(new Case(dtype, kind, 5, size));
                }
                for (int size : new int[] {1, 2, 3, 15, 17, 63, 65, 127, 129}) {
                    cases.add(new Case(dtype, kind, 5, size));
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        NormConfig config = new NormConfig(c.kind, c.size, 1e-5f, c.gamma);
        ModelPlan plan = new ModelPlan();
        NormLayer norm = NormLayer.of(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            assertEquals(c.gamma == Gamma.PLAIN ? 1 : 0, open.read(norm.weight().weight())[0], "factors begin at 1");
            Weights weights = open.draw(parameters);
            NormWitness witness = new NormWitness(config, weights, "");
            RealMatrix x =
                    Rounding.round(open.normal(c.dtype, c.tokens, c.size, 1).scalarAdd(0.5), c.dtype);
            RealMatrix dy = open.normal(c.dtype, c.tokens, c.size, 1);
            Tensor input = open.tensor(c.dtype, x);
            Tensor y = norm.forward(input, open.pass());
            open.assertClose("y", witness.forward(x), y, Tolerances.rounded(c.dtype));
            assertStatistics(norm, input, y, witness);
            Tensor dx = norm.backward(open.tensor(c.dtype, dy), open.pass());
            RealMatrix expected = witness.backward(dy);
            if (c.size > 3) {
                open.assertClose("dx", expected, dx, Tolerances.rounded(c.dtype));
            } else {
                assertSmallDifference(c, expected, open.read(dx), witness.inverseDeviation());
            }
            for (Parameter parameter : parameters.all()) { // sums of so many terms as large as one
                open.assertClose(
                        "gradient of " + parameter.name(),
                        Comparison.entries(weights.gradient(parameter.name())),
                        open.read(parameter.gradient()),
                        Math.sqrt(c.tokens),
                        Tolerances.rounded(c.dtype));
            }
        }
    }

    /** What the norm keeps for backward, from the call that it makes. */
    private static void assertStatistics(NormLayer norm, Tensor x, Tensor y, NormWitness witness) {
        Tensor mean = open.scope().tensor(DType.FLOAT32, x.size(0));
        Tensor inverse = open.scope().like(mean);
        Tensor again = open.scope().like(x);
        Tensor weight = norm.weight().weight();
        float epsilon = norm.config().epsilon();
        switch (norm) {
            case LayerNorm layerNorm -> {
                Tensor bias = layerNorm.bias().weight();
                new Normalization(epsilon, norm.config().gamma())
                        .gamma(weight)
                        .beta(bias)
                        .layernormFwd(x, again, mean, inverse, open.stream());
                open.assertClose("mean", witness.mean(), mean, Tolerances.rounded(DType.FLOAT32));
            }
            case RmsNorm rms ->
                new Normalization(epsilon, norm.config().gamma())
                        .gamma(weight)
                        .rmsnormFwd(x, again, inverse, open.stream());
        }
        open.assertClose("1 / deviation", witness.inverseDeviation(), inverse, Tolerances.rounded(DType.FLOAT32));
        boolean tuned = norm.config().size() != 320 && norm.config().size() != 1280;
        assertEquals(!tuned, norm.explain(x, open.pass()).contains("forward by ops_residual_norm_forward, for te_"));
        if (tuned) {
            assertArrayEquals(open.read(y), open.read(again));
        }
    }

    /** Few columns: the gradient is a difference of numbers as large as the reciprocal deviation, and so is its error. */
    private static void assertSmallDifference(Case c, RealMatrix expected, float[] actual, double[] inverse) {
        for (int i = 0; i < actual.length; i++) {
            double wanted = expected.getEntry(i / c.size, i % c.size);
            double allowed = Tolerances.rounded(c.dtype).element() * (inverse[i / c.size] + Math.abs(wanted));
            assertEquals(wanted, actual[i], allowed, "dx[" + i + "]");
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void gradientsAddUp(Kind kind) {
        NormConfig config = new NormConfig(kind, 32, 1e-5f);
        ModelPlan plan = new ModelPlan();
        NormLayer norm = NormLayer.of(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Weights weights = open.draw(parameters);
            NormWitness witness = new NormWitness(config, weights, "");
            double[][] sums = new double[parameters.all().size()][32];
            for (int step = 0; step < 3; step++) {
                RealMatrix x = open.normal(DType.BFLOAT16, 17, 32, 1);
                witness.forward(x);
                witness.backward(x);
                Tensor input = open.tensor(DType.BFLOAT16, x);
                norm.forward(input, open.pass());
                norm.backward(input, open.pass());
                for (int i = 0; i < sums.length; i++) {
                    double[] gradient =
                            weights.gradient(parameters.all().get(i).name()).getRow(0);
                    for (int c = 0; c < gradient.length; c++) {
                        sums[i][c] += gradient[c];
                    }
                }
            }
            for (int i = 0; i < sums.length; i++) {
                Parameter parameter = parameters.all().get(i);
                // Three gradients, each rounded to the type, may nearly cancel in an element.
                open.assertClose(parameter.name(), sums[i], parameter.gradient(), Tolerances.layer(DType.BFLOAT16));
            }
        }
    }

    /** A constant row has no deviation but epsilon's; a row far from 0 loses its digits unless the mean comes first. */
    @ParameterizedTest
    @EnumSource(Kind.class)
    void rowsThatAreConstantOrFarFromZero(Kind kind) {
        NormConfig config = new NormConfig(kind, 64, 1e-5f);
        ModelPlan plan = new ModelPlan();
        NormLayer norm = NormLayer.of(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            NormWitness witness = new NormWitness(config, open.draw(parameters), "");
            RealMatrix x = open.normal(DType.FLOAT32, 4, 64, 1);
            x.setRowVector(0, x.getRowVector(0).mapMultiply(0));
            x.setRowVector(1, x.getRowVector(1).mapMultiply(0).mapAdd(3));
            x.setRowVector(2, x.getRowVector(2).mapAdd(1000));
            x.setRowVector(3, x.getRowVector(3).mapMultiply(1e-20));
            Rounding.round(x, DType.FLOAT32);
            Tensor y = norm.forward(open.tensor(DType.FLOAT32, x), open.pass());
            Tolerance loose = new Tolerance("rounded FLOAT32 at 1000", 1e-3, 1e-3);
            open.assertClose("y", witness.forward(x), y, loose);
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void nanAndInfinityStayInTheirRow(Kind kind) {
        NormConfig config = new NormConfig(kind, 64, 1e-5f);
        ModelPlan plan = new ModelPlan();
        NormLayer norm = NormLayer.of(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            NormWitness witness = new NormWitness(config, open.draw(parameters), "");
            RealMatrix x = open.normal(DType.BFLOAT16, 17, 64, 1);
            x.setEntry(3, 5, Double.NaN);
            x.setEntry(16, 0, Double.POSITIVE_INFINITY);
            Tensor y = norm.forward(open.tensor(DType.BFLOAT16, x), open.pass());
            open.assertClose("y", witness.forward(x), y, Tolerances.rounded(DType.BFLOAT16));
        }
    }

    record LinearCase(DType dtype, Kind kind, int tokens, int inputs, int outputs, Bias bias) {}

    static List<LinearCase> linearCases() {
        List<LinearCase> cases = new ArrayList<>();
        for (DType dtype : FLOATS) {
            for (Kind kind : Kind.values()) {
                cases.add(new LinearCase(dtype, kind, 65, 64, 48, Bias.PRESENT));
                cases.add(new LinearCase(dtype, kind, 33, 64, 48, Bias.ABSENT));
                cases.add(new LinearCase(dtype, kind, 1, 16, 16, Bias.PRESENT));
                cases.add(new LinearCase(dtype, kind, 17, 33, 7, Bias.PRESENT));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("linearCases")
    void normThenProduct(LinearCase c) {
        NormConfig config = new NormConfig(c.kind, c.inputs, 1e-5f);
        ModelPlan plan = new ModelPlan();
        LayerNormLinear layer = new LayerNormLinear(config, c.outputs, c.bias, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            NormWitness norm = new NormWitness(config, weights, "norm.");
            LinearWitness linear = new LinearWitness(weights, "linear.");
            RealMatrix x = open.normal(c.dtype, c.tokens, c.inputs, 1);
            RealMatrix dy = open.normal(c.dtype, c.tokens, c.outputs, 1);
            Tensor y = layer.forward(open.tensor(c.dtype, x), open.pass());
            open.assertClose("y", linear.forward(norm.forward(x)), y, Tolerances.layer(c.dtype));
            Tensor dx = layer.backward(open.tensor(c.dtype, dy), open.pass());
            open.assertClose("dx", norm.backward(linear.backward(dy)), dx, Tolerances.layer(c.dtype));
            Tolerance tolerance = Tolerances.layer(c.dtype);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void noTokensGiveNoRowsAndZeroGradients(Kind kind) {
        ModelPlan plan = new ModelPlan();
        NormLayer norm = NormLayer.of(new NormConfig(kind, 16, 1e-5f), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Tensor x = open.scope().tensor(DType.BFLOAT16, 0, 16);
            float[] ones = new float[(int) parameters.gradients().count()];
            java.util.Arrays.fill(ones, 1);
            parameters.gradients().set(open.stream(), ones);
            assertEquals(Shape.of(0, 16), norm.forward(x, open.pass()).shape());
            norm.backward(open.scope().like(x), open.pass());
            assertArrayEquals(new float[(int) parameters.gradients().count()], open.read(parameters.gradients()));
        }
    }
}
