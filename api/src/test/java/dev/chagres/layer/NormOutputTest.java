package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import dev.chagres.witness.NormWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What a layer's norm computes as a second output: against double precision, and against the layer and its norm alone. */
@Tag("L0")
@Tag("L1")
class NormOutputTest {
    private static final int HIDDEN = 32;
    private static final int TOKENS = 21;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(
            String name,
            Function<ModelPlan, NormedBranch> make,
            DType dtype,
            @Nullable Recipe recipe) {
        @Override
        public String toString() {
            return name + ", " + dtype + ", " + recipe;
        }
    }

    static List<Case> cases() {
        Initializer normal = Initializer.normal(0.2f);
        NormConfig layerNorm = NormConfig.layerNorm(HIDDEN);
        NormConfig rmsNorm = NormConfig.rmsNorm(HIDDEN);
        MlpConfig mlp = MlpConfig.gelu(HIDDEN).withNorm(layerNorm).withInitializers(normal, normal);
        List<Case> cases = new ArrayList<>();
        List<Recipe> recipes =
                List.of(DelayedScaling.standard(), Float8CurrentScaling.standard(), Float8BlockScaling.standard());
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            List<Case> plain = List.of(
                    new Case("linear", plan -> new LayerNormLinear(layerNorm, 48, normal, plan), dtype, null),
                    new Case("linear of RMS", plan -> new LayerNormLinear(rmsNorm, 48, normal, plan), dtype, null),
                    new Case("MLP", plan -> new LayerNormMlp(mlp, plan), dtype, null),
                    new Case(
                            "gated MLP",
                            plan -> new LayerNormMlp(mlp.withActivation(Activation.SWIGLU), plan),
                            dtype,
                            null),
                    new Case(
                            "attention",
                            plan -> new MultiheadAttention(
                                    layerNorm, AttentionConfig.of(2, 16, AttentionMask.none()), normal, plan),
                            dtype,
                            null));
            cases.addAll(plain);
            if (dtype == DType.BFLOAT16) {
                plain.forEach(c -> recipes.forEach(recipe -> cases.add(new Case(c.name, c.make, dtype, recipe))));
            }
        }
        return cases;
    }

    private static Pass begin(@Nullable Quantizers quantizers) {
        Pass pass = open.pass();
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), 9, 1, 11));
        if (quantizers != null) {
            pass.autocast(quantizers);
        }
        return pass;
    }

    private static List<float[]> gradients(Parameters parameters) {
        parameters.completeGradients();
        List<float[]> gradients = new ArrayList<>();
        for (Parameter parameter : parameters.all()) {
            gradients.add(open.read(parameter.gradient()));
        }
        parameters.forgetGradients();
        return gradients;
    }

    /** The output has the bits that it has alone, the norm's output is that of the formula. */
    @ParameterizedTest
    @MethodSource("cases")
    void bothOutputs(Case c) {
        ModelPlan plan = new ModelPlan();
        NormedBranch layer = c.make.apply(plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            Quantizers quantizers = c.recipe == null ? null : Quantizers.allocate(parameters, c.recipe);
            RealMatrix x = open.normal(c.dtype, TOKENS, HIDDEN, 1);
            Tensor input = open.tensor(c.dtype, x);
            float[] alone = open.read(layer.forward(input, begin(quantizers)));
            Tensor normed = open.unwritten(c.dtype, TOKENS, HIDDEN);
            Tensor y = layer.forwardWithNorm(input, normed, begin(quantizers));
            assertArrayEquals(alone, open.read(y));
            RealMatrix expected =
                    new NormWitness(layer.norm().config(), weights, layer.norm().name() + ".").forward(x);
            open.assertClose("normed", expected, normed, Tolerances.rounded(c.dtype));
            Tensor again = open.unwritten(c.dtype, TOKENS, HIDDEN);
            Tensor into = open.unwritten(c.dtype, TOKENS, y.size(1));
            layer.forwardWithNorm(input, into, again, begin(quantizers));
            assertArrayEquals(alone, open.read(into));
            assertArrayEquals(open.read(normed), open.read(again));
        }
    }

    /** Gradients are the sum of those that the layer and its norm give alone, for they are linear in what comes back. */
    @ParameterizedTest
    @MethodSource("cases")
    void gradientsAdd(Case c) {
        ModelPlan plan = new ModelPlan();
        NormedBranch layer = c.make.apply(plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            open.draw(parameters);
            Quantizers quantizers = c.recipe == null ? null : Quantizers.allocate(parameters, c.recipe);
            Tensor x = open.tensor(c.dtype, open.normal(c.dtype, TOKENS, HIDDEN, 1));
            Tensor dnormed = open.tensor(c.dtype, open.normal(c.dtype, TOKENS, HIDDEN, 1));
            Tensor normed = open.unwritten(c.dtype, TOKENS, HIDDEN);

            Tensor y = layer.forward(x, begin(quantizers));
            Tensor dy = open.tensor(c.dtype, open.normal(c.dtype, TOKENS, (int) y.size(1), 1));
            float[] dx = open.read(layer.backward(dy, open.pass()));
            List<float[]> ofLayer = gradients(parameters);
            layer.norm().forward(x, begin(quantizers));
            float[] dxOfNorm = open.read(layer.norm().backward(dnormed, open.pass()));
            List<float[]> ofNorm = gradients(parameters);

            layer.forwardWithNorm(x, normed, begin(quantizers));
            Tensor both = layer.backwardWithNorm(dy, dnormed, open.pass());
            open.assertClose("dx", sum(dx, dxOfNorm), both, Tolerances.layer(c.dtype));
            float[] dxOfBoth = open.read(both);
            List<float[]> together = gradients(parameters);
            for (int i = 0; i < together.size(); i++) {
                double[] expected = sum(ofLayer.get(i), ofNorm.get(i));
                open.assertClose(
                        parameters.all().get(i).name(), expected, together.get(i), 0, Tolerances.layer(c.dtype));
            }
            layer.forwardWithNorm(x, normed, begin(quantizers));
            assertArrayEquals(dx, open.read(layer.backward(dy, open.pass())), "no gradient came back");
            layer.forward(x, begin(quantizers));
            Tensor into = open.unwritten(c.dtype, TOKENS, HIDDEN);
            layer.backwardWithNorm(dy, dnormed, into, open.pass());
            assertArrayEquals(dxOfBoth, open.read(into));
        }
    }

    private static double[] sum(float[] a, float[] b) {
        double[] sum = new double[a.length];
        for (int i = 0; i < sum.length; i++) {
            sum[i] = (double) a[i] + b[i];
        }
        return sum;
    }

    /** Where nothing below the product learns, the gradient that comes back for the norm's output goes nowhere. */
    @Test
    void nothingBelowLearns() {
        ModelPlan plan = new ModelPlan();
        LayerNormLinear layer = new LayerNormLinear(NormConfig.layerNorm(HIDDEN), 16, Initializer.normal(0.2f), plan);
        layer.norm().weight().freeze();
        ((LayerNorm) layer.norm()).bias().freeze();
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, TOKENS, HIDDEN, 1));
            x.stopGradient();
            Tensor normed = open.unwritten(DType.FLOAT32, TOKENS, HIDDEN);
            Tensor y = layer.forwardWithNorm(x, normed, begin(null));
            assertEquals(false, normed.requiresGradient());
            Tensor dx = layer.backwardWithNorm(y, normed, open.pass());
            assertArrayEquals(new float[TOKENS * HIDDEN], open.read(dx));
            assertEquals(true, layer.linear().weight().hasGradient());
        }
    }

    @Test
    void refusals() {
        ModelPlan plan = new ModelPlan();
        LayerNormLinear layer =
                new LayerNormLinear(NormConfig.layerNorm(HIDDEN), 16, Initializer.normal(0.2f), plan.child("a"));
        MultiheadAttention bare = MultiheadAttention.withoutNorm(
                HIDDEN,
                AttentionConfig.of(2, 16, AttentionMask.none()),
                Bias.PRESENT,
                Initializer.normal(0.2f),
                plan.child("b"));
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1)) {
            Class<IllegalArgumentException> argument = IllegalArgumentException.class;
            Tensor x = open.tensor(DType.FLOAT32, open.normal(DType.FLOAT32, TOKENS, HIDDEN, 1));
            Tensor normed = open.unwritten(DType.FLOAT32, TOKENS, HIDDEN);
            Tensor y = open.unwritten(DType.FLOAT32, TOKENS, 16);
            Pass pass = begin(null);
            assertThrown(
                    argument,
                    "normed: expected FLOAT32[21, 32], got FLOAT32[21, 16]",
                    () -> layer.forwardWithNorm(x, y, pass));
            assertThrown(
                    argument,
                    "normed: expected memory of its own, got some of x's; it is written to while that is read or written",
                    () -> layer.forwardWithNorm(x, x, pass));
            Tensor half = open.scope().view(normed, 0, TOKENS, 16);
            assertThrown(
                    argument,
                    "normed: expected memory of its own, got some of y's; it is written to while that is read or written",
                    () -> layer.forwardWithNorm(x, half, normed, pass));
            assertThrown(
                    IllegalStateException.class,
                    "b was made without a norm; ask hasNorm() first",
                    () -> bare.forwardWithNorm(x, normed, pass));
            layer.forwardWithNorm(x, normed, pass);
            assertThrown(
                    argument,
                    "dnormed: expected FLOAT32[T, 32], got FLOAT32[21, 16]",
                    () -> layer.backwardWithNorm(y, y, pass));
            Tensor dx = open.unwritten(DType.FLOAT32, TOKENS + 1, HIDDEN);
            Tensor overlapping = open.scope().view(dx, HIDDEN, TOKENS, HIDDEN);
            Tensor first = open.scope().view(dx, 0, TOKENS, HIDDEN);
            assertThrown(
                    argument,
                    "dx: expected memory of its own, got some of dnormed's; it is written to while that is read or written",
                    () -> layer.backwardWithNorm(y, overlapping, first, pass));
            layer.backwardWithNorm(y, normed, pass);
        }
    }
}
