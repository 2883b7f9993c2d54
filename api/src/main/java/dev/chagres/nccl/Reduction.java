package dev.chagres.nccl;

/**
 * How a collective combines the ranks' values, element by element.
 *
 * <p>Threading: immutable; a {@link PremultipliedSum} is used and closed on its communicator's thread.
 *
 * <p>Source: {@code ncclRedOp_t} of {@code nccl.h}.
 */
public sealed interface Reduction permits StandardReduction, PremultipliedSum {
    /** The sum over ranks; integers wrap. */
    Reduction SUM = StandardReduction.SUM;
    /** The product over ranks; integers wrap. */
    Reduction PRODUCT = StandardReduction.PRODUCT;
    /** The largest value. */
    Reduction MAX = StandardReduction.MAX;
    /** The smallest value. */
    Reduction MIN = StandardReduction.MIN;
    /** The sum over N ranks of 1/N x, with 1/N rounded to the type; of integers the sum divided by N, rounded towards zero. */
    Reduction AVERAGE = StandardReduction.AVERAGE;
}
