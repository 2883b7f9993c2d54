package dev.chagres.layer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QkvFormat;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** What {@link Layer#explain} refuses is what forward refuses, by the same words; and what it says of sums. */
@Tag("L0")
@Tag("L1")
class ExplanationTest {
    private static final int HIDDEN = 64;
    private static final AttentionConfig HEADS = AttentionConfig.of(4, 16, AttentionMask.none());

    /** Checks that both refuse, and how the text begins. */
    private static void assertBothRefuse(String beginning, Executable forward, Executable explain) {
        RuntimeException expected = assertThrows(RuntimeException.class, forward);
        RuntimeException actual = assertThrows(RuntimeException.class, explain);
        assertEquals(expected.getMessage(), actual.getMessage());
        assertEquals(expected.getClass(), actual.getClass());
        assertTrue(actual.getMessage().startsWith(beginning), actual.getMessage());
    }

    private static void assertBothRefuse(String beginning, Layer layer, Tensor x, Pass pass) {
        assertBothRefuse(beginning, () -> layer.forward(x, pass), () -> layer.explain(x, pass));
    }

    @Test
    void inputsThatForwardRefuses() {
        ModelPlan plan = new ModelPlan();
        TransformerLayer layer =
                new TransformerLayer(TransformerLayerConfig.encoder(HIDDEN, HEADS), plan.group("layer"));
        Sequential layers = new Sequential("layers", layer, new Recomputed(layer));
        Linear linear = new Linear(HIDDEN, 32, Bias.PRESENT, ParallelMode.NONE, Initializer.zeros(), plan.group("a"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Pass pass = Pass.training(device)) {
            for (Layer one : List.of(layer, layers, linear)) {
                pass.begin();
                Tensor dense = pass.scope().tensor(DType.BFLOAT16, 2, 32, HIDDEN);
                assertBothRefuse(
                        "x: " + one.name() + " expected [T, columns], got BFLOAT16[2, 32, 64]", one, dense, pass);
                assertBothRefuse("x: ", one, pass.scope().tensor(DType.BFLOAT16, 64, 63), pass);
                assertBothRefuse("x: ", one, pass.scope().tensor(DType.FLOAT32, 64, HIDDEN), pass);
                assertBothRefuse("x: ", one, pass.scope().tensor(DType.INT32, 64, HIDDEN), pass);
            }
            for (Layer one : List.of(layer, layers)) {
                pass.begin();
                Tensor x = pass.scope().tensor(DType.BFLOAT16, 64, HIDDEN);
                x.zero(pass.stream());
                assertBothRefuse("", one, x, pass); // no sequences
                pass.sequences(Sequences.packed(pass.scope(), 33, 30));
                assertBothRefuse("", one, x, pass);
                pass.sequences(Sequences.packed(pass.scope(), 33, 31));
                assertFalse(one.explain(x, pass).isEmpty());
            }
            assertFalse(parameters.all().isEmpty());
        }
    }

    @Test
    void biasesAndMasksThatForwardRefuses() {
        ModelPlan plan = new ModelPlan();
        MultiheadAttention layer = new MultiheadAttention(
                NormConfig.layerNorm(HIDDEN), HEADS, Initializer.zeros(), plan.group("attention"));
        SharedInput biases = new SharedInput("pairs");
        layer.bias(biases);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            for (Sequences sequences :
                    List.of(Sequences.packed(scope, 33, 31), Sequences.dense(scope, QkvFormat.BSHD, 2, 33))) {
                pass.begin(sequences);
                Tensor x = scope.tensor(DType.BFLOAT16, sequences.tokens(), HIDDEN);
                x.zero(pass.stream());
                String text = layer.explain(x, pass);
                assertTrue(text.contains("; bias of SharedInput pairs"), text);
                biases.forward(pass.scope().tensor(DType.BFLOAT16, 1, 4, 16, 16), pass);
                assertBothRefuse(
                        "bias: expected BFLOAT16[1 or 2, 1 or 4, 33 or more, 33 or more], got BFLOAT16[1, 4, 16, 16]",
                        layer,
                        x,
                        pass);
                pass.begin(sequences.withScoreMask(scope.tensor(DType.BYTE, 1, 3, 33, 33)));
                biases.forward(pass.scope().tensor(DType.BFLOAT16, 2, 1, 33, 33), pass);
                assertBothRefuse(
                        "mask: expected BYTE[1 or 2, 1 or 4, 33 or more, 33 or more], got BYTE[1, 3, 33, 33]",
                        layer,
                        x,
                        pass);
            }
            assertFalse(parameters.all().isEmpty());
        }
    }

    @Test
    void sumsOfEightBitProducts() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 32, Bias.PRESENT, ParallelMode.NONE, Initializer.zeros(), plan.group("a"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Pass pass = Pass.training(device)) {
            for (Accumulator sums : Accumulator.values()) {
                DelayedScaling recipe = DelayedScaling.standard().withAccumulator(Recipe.Product.FORWARD, sums);
                try (Quantizers quantizers = Quantizers.allocate(parameters, recipe)) {
                    pass.autocast(quantizers);
                    pass.begin();
                    String text = linear.explain(pass.scope().tensor(DType.BFLOAT16, 32, HIDDEN), pass);
                    String expected =
                            "; sums of forward " + sums + ", of the input's gradient SPLIT, of the weight's SPLIT";
                    assertTrue(text.contains(expected), text);
                }
            }
        }
    }

    @Test
    void blocksOfEightBitProducts() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(HIDDEN, 32, Bias.PRESENT, ParallelMode.NONE, Initializer.zeros(), plan.group("a"));
        // @start region="blocks"
        Float8BlockScaling usual = Float8BlockScaling.standard();
        Float8BlockScaling rows =
                usual.withBlocks(new Float8BlockScaling.Blocks(Scaling.BLOCK_1D, Scaling.BLOCK_1D, Scaling.BLOCK_1D));
        // @end
        Map<Float8BlockScaling, String> expected = Map.of(
                usual,
                "of weights 128 x 128, of gradients 1 x 128); ",
                rows,
                "of weights 1 x 128, of gradients 1 x 128); ",
                rows.withBackwardOverride(BackwardOverride.HIGH_PRECISION),
                "of weights 1 x 128); ");
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Pass pass = Pass.training(device)) {
            expected.forEach((recipe, end) -> {
                try (Quantizers quantizers = Quantizers.allocate(parameters, recipe)) {
                    pass.autocast(quantizers);
                    pass.begin();
                    String text = linear.explain(pass.scope().tensor(DType.BFLOAT16, 32, HIDDEN), pass);
                    String begin = "in eight bits by Float8BlockScaling (scales of inputs 1 x 128, ";
                    assertTrue(text.contains(begin + end), text);
                }
            });
        }
    }

    /** Our own kernel of norms refuses what forward does not give it, and explain says so. */
    @Test
    void normsOfRowsThatBeginAnywhere() {
        int columns = 320;
        ModelPlan plan = new ModelPlan();
        NormLayer norm = NormLayer.of(NormConfig.layerNorm(columns), plan.group("norm"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
                Scope scope = device.openScope();
                Pass pass = Pass.training(device)) {
            Tensor all = scope.tensor(DType.FLOAT32, 4 * columns + 1);
            all.zero(pass.stream());
            Tensor aligned = scope.view(all, 0, 4, columns);
            Tensor shifted = scope.view(all, 1, 4, columns);
            pass.begin();
            String text = norm.explain(aligned, pass);
            assertTrue(text.contains("by ops_residual_norm_forward, for te_layernorm_fwd is not tuned for 320"), text);
            text = norm.explain(shifted, pass);
            assertTrue(
                    text.contains("by te_layernorm_fwd, for ops_residual_norm_forward loads 16 bytes at a time"), text);
            norm.forward(aligned, pass);
            norm.forward(shifted, pass);
            assertEquals(2L * columns, parameters.count());
        }
    }

    @Test
    void slopesSayWhatTheyAre() {
        try (Device device = Device.open();
                Pass pass = Pass.training(device)) {
            pass.begin();
            assertEquals("ALiBi of 4 heads", Alibi.of(pass.scope(), 4).toString());
            assertEquals("ALiBi of 1 head", Alibi.of(pass.scope(), 1).toString());
            assertEquals(
                    "ALiBi with slopes of one's own of 2 heads",
                    Alibi.ofSlopes(pass.scope(), 1, 2).toString());
        }
    }
}
