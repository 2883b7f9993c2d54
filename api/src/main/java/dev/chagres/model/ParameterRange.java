package dev.chagres.model;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * A stretch of trained parameters that lie side by side and are treated alike by optimizers.
 *
 * <p>Threading: immutable.
 *
 * @param weights the vector of all weights of one type
 * @param weightOffset first element in {@code weights}
 * @param gradientOffset first element in {@link Parameters#gradients()}
 * @param count elements, with those between parameters, which are 0 and stay so
 * @param decay whether optimizers decay the weights
 */
public record ParameterRange(Tensor weights, long weightOffset, long gradientOffset, long count, Decay decay) {
    /** Checks that everything is there. */
    public ParameterRange {
        Checks.given("weights", weights);
        Checks.given("decay", decay);
    }

    /** Whether weights decay. */
    public enum Decay {
        /** Matrices. */
        DECAYED,
        /** Biases and norms. */
        KEPT
    }
}
