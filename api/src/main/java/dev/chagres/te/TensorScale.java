package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * The scale of a tensor in eight bits: element q stands for {@code q scaleInverse}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code kNVTEScale}, {@code kNVTERowwiseScaleInv}, {@code kNVTEAmax} in TE's {@code transformer_engine.h}.
 *
 * @param scale FLOAT32 [1], the factor of values before they are stored
 * @param scaleInverse FLOAT32 [1], {@code 1 / scale}; attention does not write it
 * @param amax FLOAT32 [1], receives the largest magnitude before scaling
 */
public record TensorScale(Tensor scale, Tensor scaleInverse, Tensor amax) {
    /**
     * Checks that all three are there.
     *
     * @throws NullPointerException when one is not
     */
    public TensorScale {
        Checks.given("scale", scale, "scaleInverse", scaleInverse, "amax", amax);
    }
}
