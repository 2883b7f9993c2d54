package dev.chagres.recipe;

import dev.chagres.DType;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.LinearWitness;
import dev.chagres.witness.QuantizedMatrixWitness;
import dev.chagres.witness.Weights;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * The three products of {@code Linear} under each recipe, against double-precision products of what the recipe's casts leave of
 * input, weight and gradient.
 */
@Tag("L0")
@Tag("L1")
class RecipeLinearConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final QuantizationConfig POWERS =
            QuantizationConfig.standard().withScales(Scales.POWER_OF_2);

    record Case(Recipe recipe, DType dtype, int tokens, int inputs, int outputs, Bias bias) {
        Case(Recipe recipe, DType dtype, int tokens, int inputs, int outputs) {
            this(recipe, dtype, tokens, inputs, outputs, Bias.PRESENT);
        }
    }

    static List<Recipe> recipes() {
        return List.of(
                DelayedScaling.standard(),
                DelayedScaling.standard().withFormat(Format.E4M3).withMargin(2),
                withFastSums(),
                Float8CurrentScaling.standard(),
                Float8CurrentScaling.standard().withScales(Scales.POWER_OF_2),
                Float8BlockScaling.standard(),
                Float8BlockScaling.standard().withScales(Scales.FLOAT32),
                withBlocks(Scaling.BLOCK_1D, Scaling.BLOCK_1D, Scaling.BLOCK_1D),
                withBlocks(Scaling.BLOCK_2D, Scaling.BLOCK_1D, Scaling.BLOCK_1D),
                withBlocks(Scaling.BLOCK_1D, Scaling.BLOCK_1D, Scaling.BLOCK_2D),
                withBlocks(Scaling.BLOCK_2D, Scaling.BLOCK_1D, Scaling.BLOCK_1D)
                        .withBackwardOverride(BackwardOverride.DEQUANTIZED),
                Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION),
                Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED),
                Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION),
                Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED),
                Float8BlockScaling.standard()
                        .withScales(Scales.FLOAT32)
                        .withBackwardOverride(BackwardOverride.DEQUANTIZED),
                Float8CurrentScaling.standard()
                        .withQuantization(
                                Role.INPUT, QuantizationConfig.standard().withAmaxEpsilon(8))
                        .withQuantization(Role.WEIGHT, POWERS)
                        .withQuantization(Role.GRADIENT, POWERS.withAmaxEpsilon(16)),
                Float8BlockScaling.standard()
                        .withQuantization(
                                Role.INPUT, QuantizationConfig.standard().withAmaxEpsilon(8))
                        .withQuantization(Role.WEIGHT, POWERS.withAmaxEpsilon(2))
                        .withQuantization(Role.GRADIENT, QuantizationConfig.standard()));
    }

    private static Float8BlockScaling withBlocks(Scaling input, Scaling weight, Scaling gradient) {
        return Float8BlockScaling.standard().withBlocks(new Float8BlockScaling.Blocks(input, weight, gradient));
    }

    private static Recipe withFastSums() {
        DelayedScaling recipe = DelayedScaling.standard();
        for (Product product : Product.values()) {
            recipe = recipe.withAccumulator(product, Accumulator.FAST);
        }
        return recipe;
    }

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (Recipe recipe : recipes()) {
            for (DType dtype : List.of(DType.BFLOAT16, DType.FLOAT16)) {
                cases.add(new Case(recipe, dtype, 32, 64, 48));
            }
            for (int tokens : new int[] {1, 7, 15, 16, 17, 129}) {
                cases.add(new Case(recipe, DType.BFLOAT16, tokens, 32, 16));
            }
            cases.add(new Case(recipe, DType.BFLOAT16, 144, 272, 144));
            cases.add(new Case(recipe, DType.BFLOAT16, 33, 32, 48, Bias.ABSENT));
        }
        return cases;
    }

    /** What the casts of one step leave of a matrix: for products that sum over its rows, and over its columns. */
    private record Seen(RealMatrix rows, RealMatrix columns) {}

    private static Seen seen(Recipe recipe, Role role, RealMatrix x, DType type, double delayedScale) {
        return switch (recipe) {
            case DelayedScaling delayed -> same(QuantizedMatrixWitness.seen(x, type, delayedScale));
            case Float8CurrentScaling current ->
                same(QuantizedMatrixWitness.seen(
                        x,
                        type,
                        QuantizedMatrixWitness.scale(
                                QuantizedMatrixWitness.amax(x),
                                type,
                                current.quantizations().of(role))));
            case Float8BlockScaling blocks ->
                blocks.scaling(role) == Scaling.BLOCK_2D
                        ? same(QuantizedMatrixWitness.seenBySquares(
                                x, type, blocks.quantizations().of(role)))
                        : new Seen(
                                QuantizedMatrixWitness.seenByRows(
                                        x, type, blocks.quantizations().of(role)),
                                QuantizedMatrixWitness.seenByColumns(
                                        x, type, blocks.quantizations().of(role)));
            default -> throw new IllegalArgumentException(recipe.toString());
        };
    }

    private static Seen same(RealMatrix x) {
        return new Seen(x, x);
    }

    /** The scales of delayed scaling: 1 at first, then what the first step's largest magnitudes make of them. */
    private record Scales3(double input, double weight, double gradient) {}

    @ParameterizedTest
    @MethodSource("cases")
    void threeProductsOfTwoSteps(Case c) {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(c.inputs, c.outputs, c.bias, Initializer.zeros(), plan);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, c.dtype, 1)) {
            Weights weights = open.draw(parameters);
            Quantizers quantizers = Quantizers.allocate(parameters, c.recipe);
            Scales3 scales = new Scales3(1, 1, 1);
            for (int step = 0; step < 2; step++) {
                RealMatrix x = open.normal(c.dtype, c.tokens, c.inputs, 1);
                RealMatrix dy = open.normal(c.dtype, c.tokens, c.outputs, 1);
                Pass pass = open.pass().begin();
                pass.autocast(quantizers);
                Tensor y = linear.forward(open.tensor(c.dtype, x), pass);
                Tensor dx = linear.backward(open.tensor(c.dtype, dy), pass);
                check(c, linear, weights, scales, x, dy, y, dx);
                scales = new Scales3(
                        delayed(c.recipe, x, c.recipe.format().forward()),
                        delayed(
                                c.recipe,
                                weights.get("weight"),
                                c.recipe.format().forward()),
                        delayed(c.recipe, dy, c.recipe.format().backward()));
                parameters.nextStep();
            }
            open.pass().noAutocast();
        }
    }

    private static void check(
            Case c, Linear linear, Weights weights, Scales3 scales, RealMatrix x, RealMatrix dy, Tensor y, Tensor dx) {
        Seen input = seen(c.recipe, Role.INPUT, x, c.recipe.format().forward(), scales.input);
        Seen gradient = seen(c.recipe, Role.GRADIENT, dy, c.recipe.format().backward(), scales.gradient);
        Seen weight = seen(
                c.recipe, Role.WEIGHT, weights.get("weight"), c.recipe.format().forward(), scales.weight);
        weights.put("seen.weight", weight.rows);
        if (c.bias == Bias.PRESENT) {
            weights.put("seen.bias", weights.get("bias"));
        }
        LinearWitness witness = new LinearWitness(weights, "seen.");
        Tolerance rounded = Tolerances.float8Product(c.dtype);
        open.assertClose("y", witness.forward(input.rows), y, rounded);
        boolean whole = c.recipe.backwardOverride() != BackwardOverride.NONE;
        boolean dequantized = c.recipe.backwardOverride() == BackwardOverride.DEQUANTIZED;
        RealMatrix backwardWeight = dequantized ? weight.rows : whole ? weights.get("weight") : weight.columns;
        // Dequantized weights are rounded to the model's type, and the product, too.
        Tolerance backward = dequantized
                ? new Tolerance("product of dequantized weights", rounded.frobenius(), 2 * rounded.element())
                : rounded;
        open.assertClose("dx", (whole ? dy : gradient.rows).multiply(backwardWeight), dx, backward);
        RealMatrix backwardInput = dequantized ? input.rows : whole ? x : input.columns;
        open.assertClose(
                "gradient of weight",
                (whole ? dy : gradient.columns).transpose().multiply(backwardInput),
                linear.weight().gradient(),
                // Dequantized inputs are rounded to the model's type.
                dequantized ? rounded : Tolerances.float8Product(DType.FLOAT32));
        if (c.bias == Bias.ABSENT) {
            return;
        }
        witness.backward(dy);
        open.assertClose(
                "gradient of bias",
                weights.gradient("seen.bias"),
                linear.bias().gradient(),
                // The kernel that casts a gradient with one scale sums its columns, in the gradient's type.
                whole || c.recipe instanceof Float8BlockScaling
                        ? Tolerances.weightGradient(c.dtype)
                        : Tolerances.float8Product(c.dtype));
    }

    /** The scale that delayed scaling makes of the first step's largest magnitude. */
    private static double delayed(Recipe recipe, RealMatrix x, DType type) {
        return recipe instanceof DelayedScaling scaling
                ? (float) Math.scalb(Float8Witness.largest(type) / QuantizedMatrixWitness.amax(x), -scaling.margin())
                : 1;
    }
}
