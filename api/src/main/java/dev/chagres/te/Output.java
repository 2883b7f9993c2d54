package dev.chagres.te;

/**
 * What an operation does with what its result holds already.
 *
 * <p>Threading: immutable.
 */
public enum Output {
    /** Replaces it; it is not read and may be undefined. */
    OVERWRITE(0),
    /** Adds to it. */
    ADD(1);

    private final float beta;

    Output(float beta) {
        this.beta = beta;
    }

    /** Returns the factor on what is there already: 0 or 1. */
    public float beta() {
        return beta;
    }
}
