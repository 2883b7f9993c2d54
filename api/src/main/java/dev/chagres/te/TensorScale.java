package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * What scales a tensor in eight bits that has one scale: element q stands for {@code q scaleInverse}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code kNVTEScale}, {@code kNVTERowwiseScaleInv}, {@code kNVTEAmax} in TE's {@code transformer_engine.h}.
 *
 * @param scale FLOAT32 [1], the factor of values that are stored
 * @param scaleInverse FLOAT32 [1], {@code 1 / scale}: no kernel of attention writes it
 * @param amax FLOAT32 [1], where the largest magnitude before scaling goes
 */
public record TensorScale(Tensor scale, Tensor scaleInverse, Tensor amax) {
    /**
     * Checks that all three are there.
     *
     * @throws NullPointerException when one is not
     */
    public TensorScale {
        Checks.given("scale", scale);
        Checks.given("scaleInverse", scaleInverse);
        Checks.given("amax", amax);
    }
}
