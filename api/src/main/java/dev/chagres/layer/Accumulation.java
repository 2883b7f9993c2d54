package dev.chagres.layer;

/**
 * What a backward pass does with the parameter gradients that are there already.
 *
 * <p>Threading: immutable.
 */
public enum Accumulation {
    /** Replaces them: the first, or only, micro-batch of a step. Nothing needs to be zeroed. */
    OVERWRITE(0),
    /** Adds to them. */
    ADD(1);

    private final float beta;

    Accumulation(float beta) {
        this.beta = beta;
    }

    /** Returns the factor on what is there already. */
    float beta() {
        return beta;
    }
}
