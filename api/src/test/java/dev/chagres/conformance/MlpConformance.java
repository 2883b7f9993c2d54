package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.NormConfig.Kind;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.witness.ActivationWitness;
import dev.chagres.witness.GeluWitness;
import dev.chagres.witness.MlpWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code LayerNormMlp} and GELU against double precision. */
@Tag("L0")
@Tag("L1")
class MlpConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, Kind kind, Recomputation recomputation, int tokens, int hidden, int inner) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (Recomputation recomputation : Recomputation.values()) {
                for (int tokens : new int[] {1, 15, 16, 17, 65, 129}) {
                    cases.add(new Case(dtype, Kind.LAYER_NORM, recomputation, tokens, 64, 128));
                }
                cases.add(new Case(dtype, Kind.RMS_NORM, recomputation, 33, 32, 48));
                cases.add(new Case(dtype, Kind.LAYER_NORM, recomputation, 17, 33, 65));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void forwardAndBackward(Case c) {
        NormConfig norm = new NormConfig(c.kind, c.hidden, 1e-5f);
        MlpConfig config = MlpConfig.gelu(c.hidden)
                .withNorm(norm)
                .withInner(c.inner)
                .withRecomputation(c.recomputation)
                .withInitializers(Initializer.zeros(), Initializer.zeros());
        ModelPlan plan = new ModelPlan();
        LayerNormMlp mlp = new LayerNormMlp(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            MlpWitness witness = new MlpWitness(norm, weights, "");
            RealMatrix x = open.normal(c.dtype, c.tokens, c.hidden, 1);
            RealMatrix dy = open.normal(c.dtype, c.tokens, c.hidden, 1);
            Tensor y = mlp.forward(open.tensor(c.dtype, x), open.pass());
            open.assertClose("y", witness.forward(x), y, Tolerances.layer(c.dtype));
            Tensor dx = mlp.backward(open.tensor(c.dtype, dy), open.pass());
            open.assertClose("dx", witness.backward(dy), dx, Tolerances.layer(c.dtype));
            Tolerance tolerance = Tolerances.layer(c.dtype);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    record ActivationCase(Activation activation, DType dtype, Recomputation recomputation, Bias bias) {}

    static List<ActivationCase> activations() {
        List<ActivationCase> cases = new ArrayList<>();
        for (Activation activation : Activation.values()) {
            for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                for (Recomputation recomputation : Recomputation.values()) {
                    for (Bias bias : Bias.values()) {
                        // Without a bias nothing leads away from where the derivative jumps.
                        if (bias == Bias.PRESENT || !hasKink(activation)) {
                            cases.add(new ActivationCase(activation, dtype, recomputation, bias));
                        }
                    }
                }
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("activations")
    void everyActivation(ActivationCase c) {
        NormConfig norm = NormConfig.layerNorm(48);
        ModelPlan plan = new ModelPlan();
        LayerNormMlp mlp = new LayerNormMlp(
                MlpConfig.gelu(48)
                        .withNorm(norm)
                        .withInner(40)
                        .withActivation(c.activation)
                        .withBias(c.bias)
                        .withRecomputation(c.recomputation),
                plan);
        assertEquals(
                c.activation.isGated() ? 80 : 40, mlp.fc1().weight().shape().size(0));
        assertEquals(40, mlp.fc2().weight().shape().size(1));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            awayFromKinks(c.activation, mlp, weights);
            MlpWitness witness = new MlpWitness(norm, c.activation, weights, "");
            RealMatrix x = open.normal(c.dtype, 33, 48, 1);
            RealMatrix dy = open.normal(c.dtype, 33, 48, 1);
            Tensor y = mlp.forward(open.tensor(c.dtype, x), open.pass());
            Tolerance tolerance = Tolerances.layer(c.dtype);
            open.assertClose("y", witness.forward(x), y, tolerance);
            Tensor dx = mlp.backward(open.tensor(c.dtype, dy), open.pass());
            open.assertClose("dx", witness.backward(dy), dx, tolerance);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    /** The numbers of gpt-oss but for the limit, which values pass here. */
    @ParameterizedTest
    @EnumSource(Recomputation.class)
    void clampedSwiglu(Recomputation recomputation) {
        ClampedSwiglu clamped = ClampedSwiglu.standard().withLimit(4);
        MlpConfig config =
                MlpConfig.gelu(48).withInner(40).withClampedSwiglu(clamped).withRecomputation(recomputation);
        assertEquals(Activation.CLAMPED_SWIGLU, config.activation());
        ModelPlan plan = new ModelPlan();
        LayerNormMlp mlp = new LayerNormMlp(config, plan);
        DType dtype = DType.FLOAT32;
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
            Weights weights = open.draw(parameters);
            awayFromLimit(mlp, weights);
            MlpWitness witness = new MlpWitness(config.norm(), new ActivationWitness(clamped), weights, "");
            RealMatrix x = open.normal(dtype, 33, 48, 1);
            RealMatrix dy = open.normal(dtype, 33, 48, 1);
            Tensor input = open.tensor(dtype, x);
            Tensor y = mlp.forward(input, open.pass().begin());
            Tolerance tolerance = Tolerances.layer(dtype);
            open.assertClose("y", witness.forward(x), y, tolerance);
            String text = mlp.explain(input, open.pass());
            assertTrue(text.contains("ClampedSwiglu[limit=4.0, alpha=1.702, linearOffset=1.0]"), text);
            Tensor dx = mlp.backward(open.tensor(dtype, dy), open.pass());
            open.assertClose("dx", witness.backward(dy), dx, tolerance);
            open.assertGradients(parameters, weights, tolerance, tolerance);
        }
    }

    /** At the limit the derivative jumps, and a rounding decides on which side a value is: biases lead far over it or nowhere. */
    private static void awayFromLimit(LayerNormMlp mlp, Weights weights) {
        RealMatrix bias = weights.get("fc1.bias");
        double[] shifts = {8, 0, -8, 0, 8};
        for (int i = 0; i < 80; i++) {
            bias.setEntry(0, i, shifts[i % 4 + i / 40]);
        }
        open.set(mlp.fc1().bias().weight(), bias);
    }

    private static boolean hasKink(Activation activation) {
        return activation == Activation.RELU || activation == Activation.REGLU;
    }

    /** Where the derivative jumps, a rounding decides which one it is: biases lead away from there, up and down by turns. */
    private static void awayFromKinks(Activation activation, LayerNormMlp mlp, Weights weights) {
        if (hasKink(activation)) {
            RealMatrix bias = weights.get("fc1.bias");
            for (int i = 0; i < 40; i++) {
                bias.setEntry(0, i, i % 2 == 0 ? 8 : -8);
            }
            open.set(mlp.fc1().bias().weight(), bias);
        }
    }

    /** What is computed again is not kept: [T, F] less. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16"})
    void recomputationKeepsNoOutputOfTheActivation(DType dtype) {
        long[] kept = new long[Recomputation.values().length];
        for (Recomputation recomputation : Recomputation.values()) {
            ModelPlan plan = new ModelPlan();
            LayerNormMlp mlp = new LayerNormMlp(MlpConfig.gelu(64).withRecomputation(recomputation), plan);
            try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 1)) {
                Tensor x = open.tensor(dtype, open.normal(dtype, 128, 64, 1));
                open.pass().begin();
                mlp.forward(x, open.pass());
                kept[recomputation.ordinal()] = open.pass().scope().usedBytes();
                assertEquals(4 * 64 * 64 * 2 + 64 * 7, parameters.count());
            }
        }
        assertEquals(
                128L * 256 * dtype.byteSize(),
                kept[Recomputation.NONE.ordinal()] - kept[Recomputation.ACTIVATION.ordinal()]);
        assertEquals(
                128L * 256 * dtype.byteSize(),
                kept[Recomputation.ACTIVATION.ordinal()] - kept[Recomputation.FC1_AND_ACTIVATION.ordinal()]);
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void gelu(DType dtype) {
        RealMatrix x = open.normal(dtype, 65, 48, 2);
        RealMatrix dy = open.normal(dtype, 65, 48, 1);
        GeluWitness witness = new GeluWitness();
        Layer gelu = new ActivationLayer("gelu", Activation.GELU);
        Tensor input = open.tensor(dtype, x);
        open.assertClose("y", witness.forward(x), gelu.forward(input, open.pass()), Tolerances.rounded(dtype));
        open.assertClose(
                "dx",
                witness.backward(dy),
                gelu.backward(open.tensor(dtype, dy), open.pass()),
                Tolerances.rounded(dtype));
    }

    /** Far from 0 the function is x or 0, its derivative 1 or 0; infinities and NaN go the same way. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void geluFarFromZero(DType dtype) {
        double[] values = {0, -0.0, 10, -10, 100, -100, 60000, -60000, 1, -1, Double.NaN, 5, -5, 0.5, -0.5, 1e-4};
        RealMatrix x = MatrixUtils.createRowRealMatrix(dev.chagres.witness.Rounding.round(values, dtype));
        GeluWitness witness = new GeluWitness();
        Layer gelu = new ActivationLayer("gelu", Activation.GELU);
        Tensor input = open.tensor(dtype, x);
        open.assertClose("y", witness.forward(x), gelu.forward(input, open.pass()), Tolerances.rounded(dtype));
        RealMatrix dy =
                MatrixUtils.createRowRealMatrix(new double[values.length]).scalarAdd(1);
        open.assertClose(
                "dx",
                witness.backward(dy),
                gelu.backward(open.tensor(dtype, dy), open.pass()),
                Tolerances.rounded(dtype));
    }
}
