package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.adapter.LowRankAdapter;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizer;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.recipe.Recipe.Product;
import org.jspecify.annotations.Nullable;

/**
 * The parameters of a linear layer, and the three sites where a recipe casts operands of its products: the input, the weight and the
 * gradient of the output.
 *
 * <p>Threading: the device's thread.
 *
 * @param bias null where none is added
 * @param split how the layer is split among ranks
 * @param adapter what is added to the product; null where there is none
 */
record LinearSites(
        Parameter weight,
        @Nullable Parameter bias,
        LinearSplit split,
        @Nullable LowRankAdapter adapter,
        QuantizerSite input,
        QuantizerSite cachedWeight,
        QuantizerSite gradient) {
    static LinearSites of(
            Parameter weight,
            @Nullable Parameter bias,
            LinearSplit split,
            @Nullable LowRankAdapter adapter,
            ModelPlan plan) {
        QuantizerSite input = plan.quantizer("input", Role.INPUT);
        QuantizerSite cachedWeight = plan.quantizer("weight", weight);
        QuantizerSite gradient = plan.quantizer("output_gradient", Role.GRADIENT);
        return new LinearSites(weight, bias, split, adapter, input, cachedWeight, gradient);
    }

    /** Returns the type of input and output: the weight's, the model's where the weight is kept in eight bits. */
    DType dtype() {
        return isQuantized() ? weight.owner().dtype() : weight.unreadWeight().dtype();
    }

    /** Returns whether the weight is kept in eight bits, with a master that no product reads, or with none. */
    boolean isQuantized() {
        return weight.storage() != WeightStorage.MODEL_TYPE;
    }

    /**
     * Checks that products may read the weight itself.
     *
     * @throws IllegalStateException when it is kept in eight bits
     */
    void requireWhole(Pass pass) {
        if (isQuantized()) {
            throw new IllegalStateException(weight.name() + " is kept "
                    + (weight.isQuantizedOnly()
                            ? "only in eight bits (QUANTIZED_ONLY)"
                            : "in eight bits, beside a master (QUANTIZED)")
                    + ", so its products need a recipe, but the pass "
                    + (pass.isCalibrating() ? "calibrates" : "has none")
                    + "; call pass.autocast, or allocate with WeightStorage.MODEL_TYPE");
        }
    }

    /**
     * Checks that backward of {@code pass} will not write a gradient that cannot be.
     *
     * @throws IllegalStateException when the weight is kept in eight bits alone and not frozen, and a backward call may come
     */
    void requireMaster(Pass pass) {
        if (weight.isQuantizedOnly() && !weight.isFrozen() && pass.isSaving()) {
            throw new IllegalStateException(weight.name() + " is kept only in eight bits (QUANTIZED_ONLY), so it cannot"
                    + " be trained, but it is not frozen and the pass trains; freeze it before Parameters.allocate, use"
                    + " Pass.evaluation, or allocate with WeightStorage.QUANTIZED");
        }
    }

    /** Returns whether a bias is added and trained. */
    boolean learnsBias() {
        return bias != null && !bias.isFrozen();
    }

    /** Returns the recipe's state where forward of {@code pass} computes in eight bits, or null. */
    @Nullable
    Quantizers quantizers(Pass pass) {
        Quantizers present = covering(pass);
        return present == null || pass.isCalibrating() ? null : present;
    }

    /** Returns the recipe's state where it covers the layer, or null. A pass that calibrates records, and casts nothing. */
    @Nullable
    Quantizers covering(Pass pass) {
        Quantizers present = pass.quantizers();
        if (present == null) {
            return null;
        }
        // A tied weight may be another plan's; the bias never is.
        Parameter own = bias == null ? weight : bias;
        if (present.parameters() != own.owner()) {
            throw new IllegalStateException(own.name() + ": expected pass.autocast with the quantizers of its own"
                    + " parameters, got those of others; call pass.autocast or pass.noAutocast before this layer");
        }
        return present.covers(input) && cachedWeight.fits() ? present : null;
    }

    /** Returns the weight in eight bits as {@code product} reads it, cast now if no pass of this step has done so. */
    QuantizedTensor weightCopy(Product product, Quantizers present, Pass pass) {
        return present.weight(cachedWeight, product, pass.recording(), pass.temporary(), pass.stream());
    }

    /** Enqueues recording of the weight's amax. */
    void recordWeight(Quantizers present, Pass pass) {
        present.recordWeight(cachedWeight, pass.recording(), pass.temporary(), pass.stream());
    }

    /** Returns the weight in its own type: itself or, where backward dequantizes, what forward has read. */
    Tensor wholeWeight(Operand x, Pass pass) {
        Quantizers present = x.quantizers();
        boolean dequantizes = weight.isQuantizedOnly()
                || (present != null && present.recipe().backwardOverride() == BackwardOverride.DEQUANTIZED);
        if (!dequantizes && !isQuantized()) {
            return weight.weight();
        }
        Tensor again = pass.temporary()
                .tensor(dtype(), weight.shape().size(0), weight.shape().size(1));
        if (present == null || !dequantizes) {
            Elementwise.cast(weight.weight(), again, pass.stream());
            return again;
        }
        QuantizedCopies.dequantize(weightCopy(Product.FORWARD, present, pass), again, pass);
        return again;
    }

    /** Returns which kernels compute the products of {@code pass}, and why not the others. */
    String explain(Pass pass) {
        Quantizers present = covering(pass);
        if (present != null && !pass.isCalibrating()) {
            return explainQuantized(present, pass) + storage();
        }
        return explainOwnType(pass) + whyNotQuantized(pass);
    }

    /** Returns the form in which sequence-parallel ranks with {@code rows} tokens each gather what products read; or nothing. */
    String explainGathered(long rows, Pass pass) {
        Quantizers present = quantizers(pass);
        boolean isRead =
                split.gathersInput() || present == null || present.recipe().backwardOverride() == BackwardOverride.NONE;
        if (present == null || !split.sharesTokens() || !isRead) {
            return "";
        }
        Quantizer quantizer = present.at(split.gathersInput() ? input : gradient);
        if (quantizer.scaling() == Scaling.TENSOR) {
            return quantizer.scalesByAmax()
                    ? " in eight bits, with the scale of the amax over all ranks, which ncclAllReduce computes"
                    : " in eight bits";
        }
        if (!split.gathersInput()) {
            return " in the model's type, which takes as many bytes as rowwise and columnwise data with block scales";
        }
        if (quantizer.scaling() == Scaling.BLOCK_2D) {
            return " in the model's type, for blocks would span tokens of several ranks";
        }
        return QuantizedInput.isWholeSteps(rows)
                ? " in eight bits"
                : " in the model's type, for " + rows + " tokens a rank are no multiple of " + QuantizedCopies.STEP;
    }

    /** Returns how backward gathers the input of {@code rows} tokens of a rank. */
    String explainGatheredAgain(long rows, Pass pass) {
        Quantizers present = quantizers(pass);
        if (present == null) {
            return "again";
        }
        if (present.recipe().backwardOverride() == BackwardOverride.HIGH_PRECISION) {
            return "in the model's type";
        }
        Scaling scaling = present.at(input).scaling();
        boolean isWhole =
                scaling == Scaling.TENSOR || (scaling == Scaling.BLOCK_1D && QuantizedInput.isWholeBlocks(rows));
        return isWhole
                ? "again"
                : "in the model's type, for blocks of " + Scaling.BLOCK + " tokens lie on several ranks";
    }

    private String storage() {
        return switch (weight.storage()) {
            case MODEL_TYPE -> "";
            case QUANTIZED -> "; the weight is cast from its FP32 master, without a copy of 16 bits";
            case QUANTIZED_ONLY -> "; the weight is kept only in eight bits";
        };
    }

    private String explainOwnType(Pass pass) {
        return "ops_matrix_product, " + explainPlan(pass) + ", "
                + (bias != null
                        ? "the bias in its epilogue, and so the bias gradient in the first backward of a step;"
                                + " later ones, large ones, and those whose weight gradient has 16 bits sum it by"
                                + " ops_row_sum"
                        : "without bias");
    }

    private String explainQuantized(Quantizers quantizers, Pass pass) {
        Recipe recipe = quantizers.recipe();
        boolean hasBias = bias != null;
        boolean casts = recipe.backwardOverride() == BackwardOverride.NONE;
        boolean sums = casts && hasBias && quantizers.at(input).scaling() == Scaling.TENSOR;
        return "ops_matrix_product, " + explainPlan(pass) + ", in eight bits by "
                + recipe.getClass().getSimpleName() + blocks(recipe, casts) + "; "
                + (recipe instanceof Float8CurrentScaling
                        ? "te_compute_amax_with_config and te_compute_scale_from_amax before "
                        : "")
                + "te_quantize_v2 for the input, the weight once a step, and "
                + (casts ? "the gradient" : "no gradient: backward is " + recipe.backwardOverride())
                + explainBias(hasBias, sums)
                + accumulators(recipe, casts)
                + (quantizers.at(input).knowsScale()
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

    private static String explainPlan(Pass pass) {
        return switch (pass.productPlan()) {
            case FIRST -> "the first kernel of cuBLASLt's heuristic";
            case MEASURED -> "the fastest of cuBLASLt's kernels, as measured";
        };
    }

    private static String explainBias(boolean hasBias, boolean sums) {
        if (!hasBias) {
            return "; there is no bias";
        }
        return sums ? ", where te_quantize_dbias sums the bias gradient, too" : "; ops_row_sum sums the bias gradient";
    }

    private String whyNotQuantized(Pass pass) {
        if (pass.quantizers() == null) {
            return "";
        }
        if (pass.isCalibrating()) {
            return "; not in eight bits, for the pass calibrates";
        }
        return "; not in eight bits, for "
                + (cachedWeight.fits()
                        ? input + " of group " + input.group() + " keeps the model's type"
                        : cachedWeight.weight() + " has a size that is no multiple of " + QuantizedCopies.STEP);
    }
}
