package dev.chagres.internal.memory;

/**
 * Is told of the multiplications that are enqueued on a device. No argument is an object, so that telling makes no garbage.
 *
 * <p>Threading: the device's thread.
 */
public interface WorkListener {
    /** Which factor of a product is transposed: forward calls multiply by a weight's transpose, and no gradient does. */
    enum Form {
        /** {@code a b^T}. */
        FORWARD,
        /** Any other. */
        GRADIENT
    }

    /** Which part of attention. */
    enum Part {
        /** Scores, and their sums over values. */
        FORWARD,
        /** Their gradients, with the scores once more. */
        GRADIENT
    }

    /** A product [m, k] by [k, n] of numbers of {@code bits} bits. */
    void product(Form form, long m, long n, long k, int bits);

    /**
     * An attention: of {@code heads} heads whose queries have {@code dim} columns and whose values {@code valueDim}.
     *
     * @param left keys before its diagonal that a query sees, -1 all
     * @param right keys after its diagonal that a query sees, -1 all; 0 is causal
     * @param bits of queries, keys and values
     */
    void attention(Part part, long heads, long dim, long valueDim, long left, long right, int bits);
}
