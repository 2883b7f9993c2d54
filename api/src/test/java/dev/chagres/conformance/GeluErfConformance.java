package dev.chagres.conformance;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.layer.ActivationLayer;
import dev.chagres.layer.Bias;
import dev.chagres.layer.GeluForm;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.MlpConfig.Recomputation;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import dev.chagres.witness.ActivationWitness;
import dev.chagres.witness.MlpWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Layers with the exact GELU against double precision: it takes kernels of its own, with each recipe. */
@Tag("L0")
@Tag("L1")
class GeluErfConformance {
    /** E4M3 rounds to 3 bits behind the first, E5M2 to 2, as in a layer of all kinds. */
    private static final Tolerance FORWARD = new Tolerance("MLP in eight bits, forward", 6e-2, 0.6);

    private static final Tolerance BACKWARD = new Tolerance("MLP in eight bits, backward", 1.6e-1, 3);
    private static final Tolerance VECTORS = new Tolerance("MLP in eight bits, norms and biases", 3e-1, 3);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(
            DType dtype,
            Recomputation recomputation,
            Bias bias,
            @Nullable Recipe recipe) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Recomputation recomputation : Recomputation.values()) {
            for (Bias bias : Bias.values()) {
                for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                    cases.add(new Case(dtype, recomputation, bias, null));
                }
                cases.add(new Case(DType.BFLOAT16, recomputation, bias, DelayedScaling.standard()));
                cases.add(new Case(DType.BFLOAT16, recomputation, bias, Float8CurrentScaling.standard()));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void mlp(Case c) {
        MlpConfig config = MlpConfig.gelu(64)
                .withInner(96)
                .withGelu(GeluForm.ERF)
                .withBias(c.bias)
                .withRecomputation(c.recomputation);
        ModelPlan plan = new ModelPlan();
        LayerNormMlp mlp = new LayerNormMlp(config, plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            MlpWitness witness = new MlpWitness(config.norm(), new ActivationWitness(GeluForm.ERF), weights, "");
            RealMatrix x = open.normal(c.dtype, 33, 64, 1);
            RealMatrix dy = open.normal(c.dtype, 33, 64, 1);
            if (c.recipe != null) {
                open.pass().autocast(Quantizers.allocate(parameters, c.recipe));
                // The first step finds the scales of delayed scaling.
                mlp.backward(open.tensor(c.dtype, dy), dx(mlp, c, x), open.pass());
                parameters.nextStep();
                open.pass().begin();
            }
            Tensor y = mlp.forward(open.tensor(c.dtype, x), open.pass());
            open.assertClose("y", witness.forward(x), y, c.recipe == null ? Tolerances.layer(c.dtype) : FORWARD);
            Tensor dx = mlp.backward(open.tensor(c.dtype, dy), open.pass());
            Tolerance backward = c.recipe == null ? Tolerances.layer(c.dtype) : BACKWARD;
            open.assertClose("dx", witness.backward(dy), dx, backward);
            open.assertGradients(parameters, weights, backward, c.recipe == null ? backward : VECTORS);
            open.pass().noAutocast();
        }
    }

    private static Tensor dx(LayerNormMlp mlp, Case c, RealMatrix x) {
        Tensor input = open.tensor(c.dtype, x);
        mlp.forward(input, open.pass());
        return open.scope().like(input);
    }

    @Test
    void saysWhyItTakesAKernelOfItsOwn() {
        ModelPlan plan = new ModelPlan();
        LayerNormMlp mlp = new LayerNormMlp(MlpConfig.gelu(64).withGelu(GeluForm.ERF), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            Tensor x = open.scope().tensor(DType.BFLOAT16, 32, 64);
            String plain = mlp.explain(x, open.pass());
            assertTrue(
                    plain.contains(
                            "GELU by erf ops_gelu_erf and ops_gelu_erf_backward, for the product's epilogue has only the form"
                                    + " of GELU by tanh; backward computes its output again by ops_gelu_erf"),
                    plain);
            open.pass().autocast(Quantizers.allocate(parameters, DelayedScaling.standard()));
            String quantized = mlp.explain(x, open.pass());
            assertTrue(
                    quantized.contains(
                            "ops_gelu_erf and ops_gelu_erf_backward, whose results are cast by kernels of their own, for"
                                    + " those that compute and cast have only the form of GELU by tanh"),
                    quantized);
            open.pass().noAutocast();
            open.pass().autocast(Quantizers.allocate(parameters, Float8CurrentScaling.standard()));
            String scaled = mlp.explain(x, open.pass());
            assertTrue(scaled.contains("ops_gelu_erf_amax and ops_gelu_erf_backward_amax, whose"), scaled);
            open.pass().noAutocast();
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void amaxIsThatOfWhatIsStored(DType dtype) {
        Tensor x = open.tensor(dtype, open.normal(dtype, 33, 67, 3));
        Tensor dy = open.tensor(dtype, open.normal(dtype, 33, 67, 4));
        Tensor plain = open.scope().tensor(dtype, 33, 67);
        Tensor y = open.scope().tensor(dtype, 33, 67);
        Tensor amax = open.scope().tensor(DType.FLOAT32, 1);
        amax.zero(open.stream());
        Elementwise.geluErf(x, plain, open.stream());
        Elementwise.geluErf(x, y, amax, open.stream());
        assertArrayEquals(open.read(plain), open.read(y));
        assertEquals(largest(open.read(y)), open.read(amax)[0]);
        amax.zero(open.stream());
        Elementwise.geluErfBackward(dy, x, plain, open.stream());
        Elementwise.geluErfBackward(dy, x, y, amax, open.stream());
        assertArrayEquals(open.read(plain), open.read(y));
        assertEquals(largest(open.read(y)), open.read(amax)[0]);
        IllegalArgumentException refused =
                assertThrows(IllegalArgumentException.class, () -> Elementwise.geluErf(x, y, y, open.stream()));
        assertEquals("amax: expected FLOAT32[1], got " + dtype + "[33, 67]", refused.getMessage());
    }

    private static float largest(float[] values) {
        float largest = 0;
        for (float value : values) {
            largest = Math.max(largest, Math.abs(value));
        }
        return largest;
    }

    @Test
    void activationLayer() {
        ActivationLayer layer = new ActivationLayer("f", GeluForm.ERF);
        assertEquals(Activation.GELU, layer.activation());
        ActivationWitness witness = new ActivationWitness(GeluForm.ERF);
        RealMatrix x = open.normal(DType.FLOAT32, 17, 33, 2);
        RealMatrix dy = open.normal(DType.FLOAT32, 17, 33, 1);
        Tensor input = open.tensor(DType.FLOAT32, x);
        Tensor y = layer.forward(input, open.pass());
        open.assertClose(
                "y", Comparison.entries(witness.forward(x)), open.read(y), 1, Tolerances.rounded(DType.FLOAT32));
        assertEquals("f: ops_gelu_erf and ops_gelu_erf_backward", layer.explain(input, open.pass()));
        Tensor dx = layer.backward(open.tensor(DType.FLOAT32, dy), open.pass());
        open.assertClose(
                "dx", Comparison.entries(witness.backward(dy)), open.read(dx), 1, Tolerances.rounded(DType.FLOAT32));
        assertEquals(GeluForm.TANH, MlpConfig.gelu(8).function().gelu());
    }
}
