package dev.chagres.drawn;

import dev.chagres.DType;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Format;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import net.jqwik.api.Arbitraries;
import net.jqwik.api.Arbitrary;
import net.jqwik.api.Combinators;
import net.jqwik.api.Tuple;

/**
 * How the products of a layer are computed in eight bits.
 *
 * @param dtype of the model
 * @param recipe with its options
 * @param group whether the recipe casts in the layer's group
 * @param storage of the weights
 */
record DrawnRecipe(DType dtype, Recipe recipe, Group group, WeightStorage storage) {
    private static final float LEAST_MAGNITUDE = 4;

    /** Whether the recipe casts in the group of the layer, or in another alone. */
    enum Group {
        CAST,
        /** The layer computes in the model's type, while a product of another group is cast. */
        KEPT
    }

    boolean casts() {
        return group == Group.CAST;
    }

    boolean wantsAttention() {
        return recipe.attention() != AttentionPrecision.HIGH_PRECISION;
    }

    static Arbitrary<DrawnRecipe> delayed() {
        return of(Combinators.combine(
                        delayedScaling(),
                        Arbitraries.of(Accumulator.class),
                        Arbitraries.of(Accumulator.class),
                        Arbitraries.of(Accumulator.class))
                .as((recipe, forward, input, weight) -> recipe.withAccumulator(Product.FORWARD, forward)
                        .withAccumulator(Product.INPUT_GRADIENT, input)
                        .withAccumulator(Product.WEIGHT_GRADIENT, weight)));
    }

    private static Arbitrary<DelayedScaling> delayedScaling() {
        return Combinators.combine(
                        Arbitraries.of(Format.class),
                        Arbitraries.of(0, 0, 1, 3),
                        Arbitraries.of(AmaxAlgorithm.class),
                        Arbitraries.of(1024, 1, 2, 16))
                .as((format, margin, algorithm, history) -> DelayedScaling.standard()
                        .withFormat(format)
                        .withMargin(margin)
                        .withAmaxComputeAlgorithm(algorithm)
                        .withAmaxHistoryLength(history));
    }

    /** Layers whose attention is in eight bits, too, where cuDNN has it. */
    static Arbitrary<DrawnRecipe> delayedWithAttention() {
        return Combinators.combine(
                        delayedScaling(), Arbitraries.of(AttentionPrecision.FP8_DPA, AttentionPrecision.FP8_MHA))
                .as((recipe, attention) -> new DrawnRecipe(
                        DType.BFLOAT16, recipe.withAttention(attention), Group.CAST, WeightStorage.MODEL_TYPE));
    }

    static Arbitrary<DrawnRecipe> current() {
        Arbitrary<Float8CurrentScaling> plain = Combinators.combine(
                        Arbitraries.of(Format.class),
                        quantization(),
                        quantization(),
                        quantization(),
                        Arbitraries.of(BackwardOverride.class))
                .as((format, input, weight, gradient, override) -> Float8CurrentScaling.standard()
                        .withFormat(format)
                        .withQuantization(Role.INPUT, input)
                        .withQuantization(Role.WEIGHT, weight)
                        .withQuantization(Role.GRADIENT, gradient)
                        .withBackwardOverride(override));
        return of(Combinators.combine(
                        plain,
                        Arbitraries.of(Accumulator.class),
                        Arbitraries.of(Accumulator.class),
                        Arbitraries.of(Accumulator.class))
                .as((recipe, forward, input, weight) -> recipe.withAccumulator(Product.FORWARD, forward)
                        .withAccumulator(Product.INPUT_GRADIENT, input)
                        .withAccumulator(Product.WEIGHT_GRADIENT, weight)));
    }

    static Arbitrary<DrawnRecipe> block() {
        return of(Combinators.combine(
                        Arbitraries.of(Format.E4M3, Format.HYBRID),
                        quantization(),
                        quantization(),
                        quantization(),
                        Arbitraries.of(BackwardOverride.class))
                .as((format, input, weight, gradient, override) -> Float8BlockScaling.standard()
                        .withFormat(format)
                        .withQuantization(Role.INPUT, input)
                        .withQuantization(Role.WEIGHT, weight)
                        .withQuantization(Role.GRADIENT, gradient)
                        .withBackwardOverride(override)));
    }

    /** A least magnitude above most of those that there are costs a few of the exponents of eight bits, and no digits. */
    private static Arbitrary<QuantizationConfig> quantization() {
        return Combinators.combine(
                        Arbitraries.of(Scales.class),
                        Arbitraries.frequency(Tuple.of(3, 0f), Tuple.of(1, LEAST_MAGNITUDE)))
                .as((scales, least) ->
                        QuantizationConfig.standard().withScales(scales).withAmaxEpsilon(least));
    }

    /** Weights that keep the model's type are never cast: one option excludes the other. */
    private static Arbitrary<DrawnRecipe> of(Arbitrary<? extends Recipe> recipes) {
        return Combinators.combine(
                        recipes,
                        Arbitraries.of(DType.BFLOAT16, DType.BFLOAT16, DType.FLOAT16),
                        Arbitraries.frequency(Tuple.of(8, Group.CAST), Tuple.of(1, Group.KEPT)),
                        Arbitraries.frequency(
                                Tuple.of(3, WeightStorage.MODEL_TYPE), Tuple.of(1, WeightStorage.QUANTIZED)))
                .as((recipe, dtype, group, storage) -> new DrawnRecipe(
                        dtype, recipe, group, group == Group.KEPT ? WeightStorage.MODEL_TYPE : storage));
    }
}
