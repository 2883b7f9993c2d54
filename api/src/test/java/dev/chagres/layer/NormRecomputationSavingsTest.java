package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import java.util.List;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What layers that recompute the outputs of their norms do not save, what they say of it, and what they refuse. */
@Tag("L0")
@Tag("L1")
class NormRecomputationSavingsTest {
    static List<NormRecomputationCase> cases() {
        return NormRecomputationCase.all();
    }

    /** Returns what a forward call keeps. */
    private static long kept(
            NormRecomputationCase c, Recomputation recomputation, DType dtype, @Nullable Recipe recipe) {
        return c.run(recomputation, dtype, recipe, EveryLayerCase.ALL, (model, pass) -> {
            model.begin(pass);
            long before = pass.scope().usedBytes();
            Tensor y = model.layer.forward(model.x, pass);
            long bytes = pass.scope().usedBytes() - before;
            model.layer.backward(model.gradient(y), pass);
            return bytes;
        });
    }

    private static long outputBytes(DType dtype) {
        return ((long) EveryLayer.TOKENS * NormRecomputationCase.HIDDEN * dtype.byteSize() + 255) / 256 * 256;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void keepsNoOutputOfANorm(NormRecomputationCase c) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            assertEquals(
                    kept(c, Recomputation.NONE, dtype, null) - c.norms() * outputBytes(dtype),
                    kept(c, Recomputation.NORMS, dtype, null));
        }
    }

    /** Copies in eight bits are kept as before; whole outputs are not. */
    @Test
    void keepsTheSameCopiesInEightBits() {
        NormRecomputationCase encoder = cases().getFirst();
        Recipe copied = Float8CurrentScaling.standard();
        DType type = DType.BFLOAT16;
        assertEquals(kept(encoder, Recomputation.NONE, type, copied), kept(encoder, Recomputation.NORMS, type, copied));
        Recipe whole = Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION);
        assertEquals(
                kept(encoder, Recomputation.NONE, type, whole) - 2 * outputBytes(type),
                kept(encoder, Recomputation.NORMS, type, whole));
    }

    /** No gradient is written of weights that lie beside those of the norm. */
    @Test
    void normWeightsThatHaveChangedAreRefused() {
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer = new TransformerLayer(
                NormRecomputationCase.ENCODER.withBias(Bias.ABSENT).withRecomputation(Recomputation.NORMS),
                plan.group("layer"));
        NormRecomputationCase.freeze(plan, ".*norm.*");
        Recipe recipe = Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3, WeightStorage.QUANTIZED);
                Quantizers quantizers = Quantizers.allocate(parameters, recipe);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            pass.begin(Sequences.packed(scope, 9, 4));
            pass.autocast(quantizers);
            layer.forward(NormRecomputationCase.drawn(scope, 13, NormRecomputationCase.HIDDEN, 1), pass);
            layer.mlp().norm().weight().weight().zero(pass.stream());
            Tensor dy = NormRecomputationCase.drawn(scope, 13, NormRecomputationCase.HIDDEN, 2);
            assertThrown(
                    IllegalStateException.class,
                    "backward: expected weights as forward has read them, got layer.mlp.norm.weight of parameters that have"
                            + " changed since: an optimizer's step, changed(), a loaded state or a write by set, copyFrom or"
                            + " zero came between; call backward before it, or pass.begin() and forward again",
                    () -> layer.backward(dy, pass));
        }
    }

    private static String explained(NormRecomputationCase c, @Nullable Recipe recipe, Consumer<ModelPlan> change) {
        return c.run(
                Recomputation.NORMS,
                DType.BFLOAT16,
                recipe,
                change,
                (model, pass) -> model.layer.explain(model.x, model.begin(pass)));
    }

    private static void assertLine(String explained, String norm, String end) {
        String line = explained
                .lines()
                .map(String::strip)
                .filter(one -> one.startsWith("layer." + norm + ":"))
                .findFirst()
                .orElseThrow();
        assertTrue(line.endsWith(end), line);
    }

    @Test
    void explains() {
        NormRecomputationCase encoder = cases().getFirst();
        String plain = explained(encoder, null, EveryLayerCase.ALL);
        assertLine(
                plain, "attention.qkv.norm", "; its output is not saved: backward recomputes it by te_layernorm_fwd");
        assertLine(plain, "mlp.norm", "; its output is not saved: backward recomputes it by ops_residual_norm_forward");
        String cast = explained(encoder, Float8CurrentScaling.standard(), EveryLayerCase.ALL);
        for (String norm : List.of("attention.qkv.norm", "mlp.norm")) {
            assertLine(cast, norm, "; its output is saved in eight bits only, and not recomputed");
        }
        String frozen = explained(encoder, null, plan -> NormRecomputationCase.freeze(plan, ".*fc1\\.weight"));
        assertLine(
                frozen, "attention.qkv.norm", "; its output is not saved: backward recomputes it by te_layernorm_fwd");
        assertLine(frozen, "mlp.norm", "; its output is not saved, for no gradient needs it");
    }

    @Test
    void aMissingChoiceIsRefused() {
        assertThrown(
                NullPointerException.class,
                "recomputation: expected a value, got null",
                () -> NormRecomputationCase.ENCODER.withRecomputation(null));
    }
}
