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
 * @param gradients those of the range, [count], FLOAT32 or as {@link ModelPlan#productGradients} says; elements between parameters are
 *     always 0
 * @param gradientOffset first element in the order of all gradients, which optimizers keep their states in
 * @param decay whether weight decay applies
 */
public record ParameterRange(Tensor weights, long weightOffset, Tensor gradients, long gradientOffset, Decay decay) {
    /** Checks that everything is there. */
    public ParameterRange {
        Checks.given("weights", weights, "gradients", gradients, "decay", decay);
    }

    /** Returns the number of elements, with those between parameters. */
    public long count() {
        return gradients.count();
    }

    /** Whether weight decay applies. */
    public enum Decay {
        /** Matrices. */
        DECAYED,
        /** Biases and norms. */
        KEPT
    }
}
