package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What recipes and their state refuse, and in which words. */
@Tag("L0")
class QuantizersMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;

    @Test
    void recipesRefuseWhatIsNoNumberOfTheirs() {
        DelayedScaling delayed = DelayedScaling.standard();
        assertThrown(
                ARGUMENT, "amaxHistoryLength: expected at least 1 step, got 0", () -> delayed.withAmaxHistoryLength(0));
        assertThrown(ARGUMENT, "margin: expected within -64 and 64, got 65", () -> delayed.withMargin(65));
        assertThrown(NullPointerException.class, "format: expected a value, got null", () -> delayed.withFormat(null));
        assertThrown(
                NullPointerException.class,
                "backwardOverride: expected a value, got null",
                () -> Float8CurrentScaling.standard().withBackwardOverride(null));
        assertThrown(
                NullPointerException.class,
                "backwardOverride: expected a value, got null",
                () -> Float8BlockScaling.standard().withBackwardOverride(null));
        assertThrown(
                NullPointerException.class,
                "role: expected a value, got null",
                () -> Float8BlockScaling.standard().withQuantization(null, null));
    }

    @Test
    void blocksRefuseWhatHasNoProduct() {
        assertThrown(
                ARGUMENT,
                "blocks: expected at most one BLOCK_2D, for cuBLASLt has no product of two, got BLOCK_2D inputs, BLOCK_2D"
                        + " weights and BLOCK_1D gradients; set one to BLOCK_1D before another to BLOCK_2D",
                () -> new Float8BlockScaling.Blocks(Scaling.BLOCK_2D, Scaling.BLOCK_2D, Scaling.BLOCK_1D));
        assertThrown(
                ARGUMENT,
                "gradient: expected BLOCK_1D or BLOCK_2D, got TENSOR; use Float8CurrentScaling or DelayedScaling for"
                        + " one scale per tensor",
                () -> new Float8BlockScaling.Blocks(Scaling.BLOCK_1D, Scaling.BLOCK_1D, Scaling.TENSOR));
        assertThrown(
                NullPointerException.class,
                "blocks: expected a value, got null",
                () -> Float8BlockScaling.standard().withBlocks(null));
    }

    @Test
    void eachProductSumsAsTheRecipeSays() {
        for (Product other : Product.values()) {
            DelayedScaling delayed = DelayedScaling.standard().withAccumulator(other, Accumulator.SPLIT);
            Float8CurrentScaling current = Float8CurrentScaling.standard().withAccumulator(other, Accumulator.FAST);
            for (Product product : Product.values()) {
                Accumulator standard = product == Product.FORWARD ? Accumulator.FAST : Accumulator.SPLIT;
                assertEquals(standard, DelayedScaling.standard().accumulator(product));
                assertEquals(product == other ? Accumulator.SPLIT : standard, delayed.accumulator(product));
                assertEquals(product == other ? Accumulator.FAST : standard, current.accumulator(product));
            }
        }
        DelayedScaling margin = DelayedScaling.standard()
                .withAccumulator(Product.WEIGHT_GRADIENT, Accumulator.FAST)
                .withMargin(1)
                .withFormat(Format.E4M3)
                .withAmaxHistoryLength(4)
                .withAmaxComputeAlgorithm(AmaxAlgorithm.MOST_RECENT)
                .withAttention(AttentionPrecision.FP8_DPA);
        assertEquals(Accumulator.FAST, margin.accumulator(Product.WEIGHT_GRADIENT));
        assertEquals(Accumulator.SPLIT, margin.accumulator(Product.INPUT_GRADIENT));
        assertThrown(
                NullPointerException.class,
                "product: expected a value, got null",
                () -> DelayedScaling.standard().withAccumulator(null, Accumulator.FAST));
        assertThrown(
                NullPointerException.class,
                "accumulator: expected a value, got null",
                () -> DelayedScaling.standard().withAccumulator(Product.FORWARD, null));
    }

    @Test
    void quantizersRefuseWhatTheyCannotCompute() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.ones(), plan.group("body"));
        ModelPlan single = new ModelPlan();
        new Linear(16, 16, Initializer.ones(), single);
        try (Device device = Device.open();
                Device other = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Parameters floats = Parameters.allocate(device, single, DType.FLOAT32, 1);
                Pass pass = Pass.training(other)) {
            assertThrown(
                    ARGUMENT,
                    "recipe: MXFP8BlockScaling needs a GPU of compute capability 10.0 (Blackwell), and this version"
                            + " computes only on 9.0; use Float8BlockScaling",
                    () -> Quantizers.allocate(parameters, new MXFP8BlockScaling()));
            assertThrown(
                    ARGUMENT,
                    "highPrecision: expected groups that have a product, [body], got neck",
                    () -> Quantizers.allocate(parameters, DelayedScaling.standard(), Set.of("neck")));
            assertThrown(
                    ARGUMENT,
                    "parameters: expected BFLOAT16 or FLOAT16 weights for products in eight bits, got FLOAT32 weight[16, 16];"
                            + " allocate them in BFLOAT16, or name their group among those that keep the model's type",
                    () -> Quantizers.allocate(floats, DelayedScaling.standard()));
            Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
            assertThrown(
                    ARGUMENT,
                    "quantizers: expected those of " + other + ", got those of " + device + ", opened another time",
                    () -> pass.autocast(quantizers));
            assertThrown(
                    NullPointerException.class, "quantizers: expected a value, got null", () -> pass.calibrate(null));
            ModelPlan headOnly = new ModelPlan();
            new Linear(16, 16, Initializer.ones(), headOnly.child("model").child("head"));
            try (Parameters heads = Parameters.allocate(device, headOnly, DType.BFLOAT16, 1)) {
                assertThrown(
                        ARGUMENT,
                        "parameters: expected a Linear outside the head and the groups that keep the model's type, for a"
                                + " recipe casts what its products read; got none",
                        () -> Quantizers.allocate(heads, DelayedScaling.standard()));
            }
            QuantizerSite input = parameters.quantizers().getFirst();
            assertThrown(
                    ARGUMENT,
                    "site: expected that of a weight, got body.input",
                    () -> quantizers.weight(
                            input, Recipe.Product.FORWARD, AmaxRecording.OFF, parameters.scope(), device.stream()));
            QuantizerSite foreign = new ModelPlan().quantizer("a", Role.INPUT);
            ModelPlan larger = new ModelPlan();
            new Linear(16, 16, Initializer.ones(), larger.group("body"));
            QuantizerSite uncovered = larger.group("late").quantizer("b", Role.GRADIENT);
            assertThrown(
                    ARGUMENT,
                    "site: expected one that the recipe covers, got late.b of group late",
                    () -> quantizers.at(uncovered));
            assertThrown(
                    ARGUMENT,
                    "site: expected one that the recipe covers, got a of group ",
                    () -> quantizers.at(foreign));
        }
    }

    @Test
    void kernelsThatCastNeedAScaleAndNoBlocks() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.ones(), plan.group("body"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Scope scope = device.openScope()) {
            Quantizers delayed = Quantizers.allocate(parameters, DelayedScaling.standard());
            Quantizers current = Quantizers.allocate(parameters, Float8CurrentScaling.standard());
            Quantizers blocks = Quantizers.allocate(parameters, Float8BlockScaling.standard());
            QuantizerSite input = parameters.quantizers().getFirst();
            assertTrue(delayed.at(input).knowsScale());
            assertFalse(current.at(input).knowsScale());
            assertFalse(delayed.at(input).scalesByAmax());
            assertTrue(current.at(input).scalesByAmax());
            assertThrown(
                    ARGUMENT,
                    "site: expected a scale that does not depend on the tensor's values, got body.input of"
                            + " " + current.recipe()
                            + "; call cast",
                    () -> current.at(input).setScale(current.at(input).empty(scope, 16, 16), AmaxRecording.OFF));
            assertThrown(
                    ARGUMENT,
                    "copies: expected FLOAT8_E4M3 scaled by TENSOR at body.input, got QuantizedTensor FLOAT8_E4M3[16, 16]"
                            + " BLOCK_1D",
                    () -> delayed.at(input).setScale(blocks.at(input).empty(scope, 16, 16), AmaxRecording.OFF));
            Tensor x = scope.tensor(DType.BFLOAT16, 16, 16);
            Tensor sums = scope.tensor(DType.BFLOAT16, 16);
            assertThrown(
                    ARGUMENT,
                    "site: expected a scale computed from the tensor's amax, got body.input of " + delayed.recipe()
                            + "; call cast",
                    () -> delayed.at(input)
                            .findAmax(x, delayed.at(input).empty(scope, 16, 16), scope, device.stream()));
            assertThrown(
                    ARGUMENT,
                    "site: expected one scale per tensor, for no kernel sums columns and casts to blocks at once, got"
                            + " body.input of "
                            + blocks.recipe() + "; call cast",
                    () -> blocks.at(input)
                            .castAndSumColumns(
                                    x,
                                    blocks.at(input).empty(scope, 16, 16),
                                    sums,
                                    AmaxRecording.OFF,
                                    scope,
                                    device.stream()));
            assertThrown(
                    NullPointerException.class,
                    "columnSums: expected a value, got null",
                    () -> delayed.at(input)
                            .castAndSumColumns(
                                    x,
                                    delayed.at(input).empty(scope, 16, 16),
                                    null,
                                    AmaxRecording.OFF,
                                    scope,
                                    device.stream()));
        }
    }

    @Test
    void passesRefuseQuantizersOfOthersAndClosedOnes() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 16, Initializer.ones(), plan.group("body"));
        ModelPlan second = new ModelPlan();
        Linear other = new Linear(16, 16, Initializer.ones(), second.group("body"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Parameters others = Parameters.allocate(device, second, DType.BFLOAT16, 1);
                Pass pass = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            Quantizers quantizers = Quantizers.allocate(parameters, Float8CurrentScaling.standard());
            Tensor x = others.scope().tensor(DType.BFLOAT16, 16, 16);
            x.zero(device.stream());
            pass.begin();
            pass.autocast(quantizers);
            assertThrown(
                    IllegalStateException.class,
                    "body.bias: expected pass.autocast with the quantizers of its own parameters, got those of others;"
                            + " call pass.autocast or pass.noAutocast before this layer",
                    () -> other.forward(x, pass));
            assertThrown(
                    IllegalStateException.class,
                    "calibrate: expected a training pass, for evaluation records nothing; call it on one from"
                            + " Pass.training, then parameters.nextStep()",
                    () -> evaluation.calibrate(quantizers));
            quantizers.close();
            pass.begin();
            assertThrown(
                    IllegalStateException.class,
                    "the quantizers of the pass are closed, by themselves or with their parameters; call pass.noAutocast,"
                            + " or pass.autocast with others",
                    () -> linear.forward(x, pass));
        }
    }

    @Test
    void aPlacesQuantizerSaysWhatItCastsToUntilItIsClosed() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.ones(), plan.group("body"));
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Scope scope = device.openScope()) {
            Quantizers quantizers = Quantizers.allocate(parameters, Float8BlockScaling.standard());
            QuantizerSite weight = parameters.quantizers().get(1);
            Quantizer quantizer = quantizers.at(weight);
            assertSame(weight, quantizer.site());
            assertEquals(DType.FLOAT8_E4M3, quantizer.dtype());
            assertEquals(Scaling.BLOCK_2D, quantizer.scaling());
            assertEquals("body.weight in FLOAT8_E4M3 scaled by BLOCK_2D", quantizer.toString());
            Tensor x = scope.tensor(DType.BFLOAT16, 16, 16);
            QuantizedTensor copies = quantizer.empty(scope, 16, 16).allocateRowwise(scope);
            quantizers.close();
            assertThrown(
                    IllegalStateException.class,
                    "the quantizers of the pass are closed, by themselves or with their parameters; call pass.noAutocast,"
                            + " or pass.autocast with others",
                    () -> quantizer.cast(x, copies, AmaxRecording.OFF, scope, device.stream()));
        }
    }

    @Test
    void plansRefuseSitesOfWeightsWithoutAWeight() {
        assertThrown(
                ARGUMENT,
                "role: expected INPUT or GRADIENT, got WEIGHT; name the parameter instead",
                () -> new ModelPlan().quantizer("weight", Role.WEIGHT));
    }
}
