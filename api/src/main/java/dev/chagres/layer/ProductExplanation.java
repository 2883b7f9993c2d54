package dev.chagres.layer;

import dev.chagres.Scaling;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;

/**
 * Describes which kernels compute the products of a linear layer.
 *
 * <p>Threading: immutable.
 */
final class ProductExplanation {
    private ProductExplanation() {}

    static String inOwnType(Pass pass, boolean hasBias) {
        return "ops_matrix_product, " + plan(pass) + ", "
                + (hasBias
                        ? "the bias in its epilogue, and so the bias gradient in the first backward of a step;"
                                + " later ones, large ones, and those whose weight gradient has 16 bits sum it by"
                                + " ops_row_sum"
                        : "without bias");
    }

    /** {@code place}: any site that the recipe covers, since all have the same scaling. */
    static String quantized(Pass pass, Quantizers quantizers, QuantizerSite place, boolean hasBias) {
        Recipe recipe = quantizers.recipe();
        boolean casts = recipe.backwardOverride() == BackwardOverride.NONE;
        boolean sums = casts && hasBias && quantizers.at(place).scaling() == Scaling.TENSOR;
        return "ops_matrix_product, " + plan(pass) + ", in eight bits by "
                + recipe.getClass().getSimpleName() + blocks(recipe, casts) + "; "
                + (recipe instanceof Float8CurrentScaling
                        ? "te_compute_amax_with_config and te_compute_scale_from_amax before "
                        : "")
                + "te_quantize_v2 for the input, the weight once a step, and "
                + (casts ? "the gradient" : "no gradient: backward is " + recipe.backwardOverride())
                + bias(hasBias, sums)
                + accumulators(recipe, casts)
                + (quantizers.at(place).knowsScale()
                        ? "; tensors already cast by the kernel that computes them are not cast again"
                        : "");
    }

    /** Describes which elements share a scale, if the recipe lets one choose. */
    private static String blocks(Recipe recipe, boolean casts) {
        if (!(recipe instanceof Float8BlockScaling scaling)) {
            return "";
        }
        Float8BlockScaling.Blocks blocks = scaling.blocks();
        return " (scales of inputs " + sizes(blocks.input()) + ", of weights " + sizes(blocks.weight())
                + (casts ? ", of gradients " + sizes(blocks.gradient()) : "") + ")";
    }

    private static String sizes(Scaling scaling) {
        return (scaling == Scaling.BLOCK_1D ? 1 : Scaling.BLOCK) + " x " + Scaling.BLOCK;
    }

    /** Describes how FP8 products accumulate, if the recipe lets one choose. */
    private static String accumulators(Recipe recipe, boolean casts) {
        String forward = "; sums of forward " + recipe.accumulator(Product.FORWARD);
        return casts
                ? forward + ", of the input's gradient " + recipe.accumulator(Product.INPUT_GRADIENT)
                        + ", of the weight's " + recipe.accumulator(Product.WEIGHT_GRADIENT)
                : forward;
    }

    private static String plan(Pass pass) {
        return switch (pass.productPlan()) {
            case FIRST -> "the first kernel of cuBLASLt's heuristic";
            case MEASURED -> "the fastest of cuBLASLt's kernels, as measured";
        };
    }

    private static String bias(boolean hasBias, boolean sums) {
        if (!hasBias) {
            return "; there is no bias";
        }
        return sums ? ", where te_quantize_dbias sums the bias gradient, too" : "; ops_row_sum sums the bias gradient";
    }

    static String whyNotQuantized(Pass pass, QuantizerSite input, QuantizerSite weight) {
        if (pass.quantizers() == null) {
            return "";
        }
        if (pass.isCalibrating()) {
            return "; not in eight bits, for the pass calibrates";
        }
        return "; not in eight bits, for "
                + (weight.fits()
                        ? input + " of group " + input.group() + " keeps the model's type"
                        : weight.weight() + " has a size that is no multiple of " + QuantizedCopies.STEP);
    }
}
