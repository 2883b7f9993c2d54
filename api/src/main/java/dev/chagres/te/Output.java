package dev.chagres.te;

/**
 * Whether an operation overwrites its output or accumulates into it.
 *
 * <p>Threading: immutable.
 */
public enum Output {
    /** Overwrites it; the old values are not read and may be undefined. */
    OVERWRITE(0),
    /** Accumulates into it. */
    ADD(1);

    private final float beta;

    Output(float beta) {
        this.beta = beta;
    }

    /** Returns the factor of the old values: 0 or 1. */
    public float beta() {
        return beta;
    }
}
