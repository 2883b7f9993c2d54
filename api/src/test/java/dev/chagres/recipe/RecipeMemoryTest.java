package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.LayerNormLinear;
import dev.chagres.layer.LayerNormMlp;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What layers keep for backward where products read eight bits, and which kernels cast. */
@Tag("L0")
@Tag("L1")
class RecipeMemoryTest {
    private static final long TOKENS = 256;
    private static final long SIZE = 64;
    private static final long MATRIX = TOKENS * SIZE;

    /** Two rows of statistics and one scale inverse, each a multiple of 256 bytes. */
    private static final long SMALL = 2 * TOKENS * 4 + 256;

    private static long kept(Function<ModelPlan, Layer> maker, @Nullable Recipe recipe) {
        ModelPlan plan = new ModelPlan();
        Layer layer = maker.apply(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                Pass pass = Pass.training(device)) {
            if (recipe != null) {
                pass.autocast(Quantizers.allocate(parameters, recipe));
            }
            pass.begin(Sequences.packed(parameters.scope(), (int) TOKENS));
            Tensor x = pass.scope().tensor(DType.BFLOAT16, TOKENS, SIZE);
            x.zero(device.stream());
            long before = pass.scope().usedBytes();
            Tensor y = layer.forward(x, pass);
            long after = pass.scope().usedBytes();
            layer.backward(y, pass);
            return after - before;
        }
    }

    private static Layer normAndProduct(ModelPlan plan) {
        return new LayerNormLinear(NormConfig.layerNorm(SIZE), SIZE, Initializer.normal(1), plan);
    }

    @ParameterizedTest
    @MethodSource("dev.chagres.recipe.RecipeLinearConformance#recipes")
    void aNormsOutputIsKeptInEightBitsAlone(Recipe recipe) {
        long plain = kept(RecipeMemoryTest::normAndProduct, null);
        assertEquals(2 * MATRIX + 2 * MATRIX + 2 * TOKENS * 4, plain, "the result, the norm's output, its statistics");
        if (recipe.backwardOverride() != BackwardOverride.HIGH_PRECISION) {
            long scales = recipe instanceof Float8BlockScaling ? MATRIX / 128 * 4 + 256 : 256;
            assertTrue(
                    kept(RecipeMemoryTest::normAndProduct, recipe) <= 2 * MATRIX + MATRIX + SMALL + scales,
                    "the result, a copy in eight bits, statistics, scales");
        } else {
            assertEquals(plain, kept(RecipeMemoryTest::normAndProduct, recipe), "backward reads the norm's output");
        }
    }

    @Test
    void layersKeepLessThanInTheModelsType() {
        Function<ModelPlan, Layer> mlp = plan -> new LayerNormMlp(MlpConfig.gelu(SIZE), plan);
        Function<ModelPlan, Layer> transformer = plan -> new TransformerLayer(
                TransformerLayerConfig.encoder(SIZE, AttentionConfig.of(2, 32, AttentionMask.none())), plan);
        for (Recipe recipe : new Recipe[] {DelayedScaling.standard(), Float8CurrentScaling.standard()}) {
            assertTrue(kept(mlp, recipe) <= kept(mlp, null) - MATRIX + SMALL, "one norm");
            // Attention's backward reads the heads' output itself, which is kept beside its copy in eight bits.
            assertTrue(kept(transformer, recipe) <= kept(transformer, null) - MATRIX + 2 * SMALL, "two norms");
        }
    }

    private static String explained(MlpConfig config, Recipe recipe) {
        ModelPlan plan = new ModelPlan();
        Layer layer = new LayerNormMlp(config, plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
                Pass pass = Pass.training(device)) {
            pass.autocast(Quantizers.allocate(parameters, recipe));
            pass.begin();
            return layer.explain(pass.scope().tensor(DType.BFLOAT16, TOKENS, SIZE), pass);
        }
    }

    @Test
    void kernelsCastWhatTheyComputeWhereTheScaleIsKnown() {
        MlpConfig gelu = MlpConfig.gelu(SIZE);
        String delayed = explained(gelu, DelayedScaling.standard());
        assertTrue(delayed.contains("te_gelu, which casts its output itself"), delayed);
        assertTrue(delayed.contains("te_quantize_dbias_dgelu, which casts its gradient"), delayed);
        assertTrue(delayed.contains("te_quantize_dbias sums the bias gradient, too"), delayed);
        assertTrue(
                delayed.contains(
                        "layer norm, forward by ops_residual_norm_forward, which writes its output only in eight"
                                + " bits, rowwise and columnwise; backward by te_layernorm_bwd\n"),
                delayed);
        String gated = explained(gelu.withActivation(Activation.SWIGLU), DelayedScaling.standard());
        assertTrue(gated.contains("which casts its output itself, and te_dswiglu, whose gradient te_quant"), gated);
        MlpConfig noBias = gelu.withBias(Bias.ABSENT);
        String withoutBias = explained(noBias, DelayedScaling.standard());
        assertTrue(withoutBias.contains("and te_dgelu, which casts its gradient itself, for"), withoutBias);
        String swiglu = explained(noBias.withActivation(Activation.SWIGLU), DelayedScaling.standard());
        assertTrue(swiglu.contains("and ops_gated_gradient, which casts its gradient itself, for"), swiglu);
        String current = explained(gelu, Float8CurrentScaling.standard());
        assertTrue(
                current.contains(
                        "layer norm, forward by ops_residual_norm_forward, which computes the amax of its output,"
                                + " too; backward by te_layernorm_bwd\n"),
                current);
        assertTrue(current.contains("te_gelu and te_dgelu, which compute the amaxes of what they"), current);
        String blocks = explained(gelu, Float8BlockScaling.standard());
        assertTrue(blocks.contains("; ops_row_sum sums the bias gradient"), blocks);
    }
}
