package dev.chagres.recipe;

import dev.chagres.internal.Checks;
import dev.chagres.recipe.Recipe.Product;
import dev.chagres.te.Gemm.Accumulator;

/**
 * Accumulators of the three products of a linear layer in eight bits.
 *
 * <p>Threading: immutable.
 *
 * @param forward of {@code y = x W^T}
 * @param inputGradient of {@code dx = dy W}
 * @param weightGradient of {@code dW = dy^T x}
 */
public record Accumulators(Accumulator forward, Accumulator inputGradient, Accumulator weightGradient) {
    private static final Accumulators STANDARD =
            new Accumulators(Accumulator.FAST, Accumulator.SPLIT, Accumulator.SPLIT);

    /** Checks that each is there. */
    public Accumulators {
        Checks.given("forward", forward, "inputGradient", inputGradient, "weightGradient", weightGradient);
    }

    /** Returns TE's defaults: FAST forward, SPLIT backward. */
    public static Accumulators standard() {
        return STANDARD;
    }

    /** Returns the accumulator of one product. */
    public Accumulator of(Product product) {
        return switch (Checks.given("product", product)) {
            case FORWARD -> forward;
            case INPUT_GRADIENT -> inputGradient;
            case WEIGHT_GRADIENT -> weightGradient;
        };
    }

    /** Returns the same with another accumulator for one product. */
    public Accumulators with(Product product, Accumulator accumulator) {
        Checks.given("accumulator", accumulator);
        return switch (Checks.given("product", product)) {
            case FORWARD -> new Accumulators(accumulator, inputGradient, weightGradient);
            case INPUT_GRADIENT -> new Accumulators(forward, accumulator, weightGradient);
            case WEIGHT_GRADIENT -> new Accumulators(forward, inputGradient, accumulator);
        };
    }
}
