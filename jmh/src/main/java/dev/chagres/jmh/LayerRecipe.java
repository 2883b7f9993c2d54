package dev.chagres.jmh;

import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;
import org.jspecify.annotations.Nullable;

/** The recipes under which layers are measured. */
public enum LayerRecipe {
    /** Products in BF16. */
    BF16(null),
    /** Products in eight bits, delayed scaling. */
    FP8_DELAYED(DelayedScaling.standard()),
    /** The same, and attention in eight bits if its sequences are dense. */
    FP8_DELAYED_DPA(DelayedScaling.standard().withAttention(AttentionPrecision.FP8_DPA)),
    /** The same, and the products around attention exchange eight bits with it. */
    FP8_DELAYED_MHA(DelayedScaling.standard().withAttention(AttentionPrecision.FP8_MHA)),
    /** The same, and fast accumulation in backward, as in forward. */
    FP8_DELAYED_MHA_FAST(DelayedScaling.standard()
            .withAttention(AttentionPrecision.FP8_MHA)
            .withAccumulator(Product.INPUT_GRADIENT, Accumulator.FAST)
            .withAccumulator(Product.WEIGHT_GRADIENT, Accumulator.FAST)),
    /** Products in eight bits, current scaling. */
    FP8_CURRENT(Float8CurrentScaling.standard()),
    /** Products in eight bits, block scaling. */
    FP8_BLOCK(Float8BlockScaling.standard());

    private final @Nullable Recipe recipe;

    LayerRecipe(@Nullable Recipe recipe) {
        this.recipe = recipe;
    }

    /** Makes {@code pass} compute by this recipe; returns its quantizers, or null. */
    @Nullable
    Quantizers begin(Parameters parameters, Pass pass) {
        if (recipe == null) {
            return null;
        }
        Quantizers quantizers = Quantizers.allocate(parameters, recipe);
        pass.autocast(quantizers);
        return quantizers;
    }
}
