package dev.chagres.parameter;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * A range of trained parameters that lie side by side and that optimizers update in the same way.
 *
 * <p>Threading: immutable.
 *
 * @param weights the vector of all weights of one type
 * @param weightOffset first element in {@code weights}
 * @param gradientOffset first element in {@link Parameters#gradients()}
 * @param count elements, including those between parameters, which are always 0
 * @param decay whether weight decay applies
 */
public record ParameterRange(Tensor weights, long weightOffset, long gradientOffset, long count, Decay decay) {
    /** Checks that everything is there. */
    public ParameterRange {
        Checks.given("weights", weights, "decay", decay);
    }

    /** Whether weight decay applies. */
    public enum Decay {
        /** Matrices. */
        DECAYED,
        /** Biases and norms. */
        KEPT
    }
}
