package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Gemm.Accumulator;
import java.util.Arrays;
import java.util.Locale;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** In what precision the layers compute; master weights, optimizer state and gradient sums are FP32 in all. */
public enum TrainingRecipe {
    /** Activations and weights in BF16, sums in FP32. */
    BF16(DType.BFLOAT16, null),
    /** Activations and weights in FP16, sums in FP32; the loss is scaled, since FP16 has few exponents. */
    FP16(DType.FLOAT16, null),
    /** Everything in FP32. */
    FP32(DType.FLOAT32, null),
    /** As BF16, with the products of the layers in eight bits, scaled by earlier steps. */
    FP8_DELAYED(DType.BFLOAT16, DelayedScaling.standard()),
    /** As FP8_DELAYED; the products of backward sum as those of forward do, in the accumulators of the tensor cores. */
    FP8_DELAYED_FAST(
            DType.BFLOAT16,
            DelayedScaling.standard()
                    .withAccumulator(Recipe.Product.INPUT_GRADIENT, Accumulator.FAST)
                    .withAccumulator(Recipe.Product.WEIGHT_GRADIENT, Accumulator.FAST)),
    /** As BF16, with the products of the layers in eight bits, scaled by what each tensor holds. */
    FP8_CURRENT(DType.BFLOAT16, Float8CurrentScaling.standard()),
    /** As BF16, with the products of the layers in eight bits, scaled by blocks. */
    FP8_BLOCK(DType.BFLOAT16, Float8BlockScaling.standard());

    private final DType dtype;
    private final @Nullable Recipe quantizedWeight;

    TrainingRecipe(DType dtype, @Nullable Recipe quantizedWeight) {
        this.dtype = dtype;
        this.quantizedWeight = quantizedWeight;
    }

    /** Returns the type of weights and activations. */
    public DType dtype() {
        return dtype;
    }

    /** Returns the recipe of the layers' products where they are computed in eight bits. */
    public Optional<Recipe> quantizedWeight() {
        return Optional.ofNullable(quantizedWeight);
    }

    /** Returns whether a run can go on from one of the recipe {@code label}: types and scales are the same, and at most sums differ. */
    boolean goesOnFrom(String label) {
        return Arrays.stream(values())
                .filter(other -> other.toString().equals(label))
                .anyMatch(other -> dtype == other.dtype && withFastSums().equals(other.withFastSums()));
    }

    /** Returns whether a run can go on from one of the recipe {@code label} without its scales: weights and their masters have the same types. */
    boolean hasWeightsOf(String label) {
        return Arrays.stream(values()).anyMatch(other -> other.toString().equals(label) && dtype == other.dtype);
    }

    private Optional<Recipe> withFastSums() {
        return quantizedWeight()
                .map(recipe -> recipe instanceof DelayedScaling delayed ? withFastSums(delayed) : recipe);
    }

    private static Recipe withFastSums(DelayedScaling recipe) {
        DelayedScaling fast = recipe;
        for (Recipe.Product product : Recipe.Product.values()) {
            fast = fast.withAccumulator(product, Accumulator.FAST);
        }
        return fast;
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT).replace('_', '-');
    }
}
