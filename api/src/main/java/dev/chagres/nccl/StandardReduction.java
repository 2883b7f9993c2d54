package dev.chagres.nccl;

/**
 * NCCL's own reductions, in its order.
 *
 * <p>Threading: immutable.
 */
enum StandardReduction implements Reduction {
    SUM,
    PRODUCT,
    MAX,
    MIN,
    AVERAGE
}
