package dev.chagres.layer;

/**
 * The position of a norm, as far as its kernels depend on it.
 *
 * <p>Threading: immutable.
 *
 * @param sums whether forward is of a sum that was not formed yet
 * @param sumsGradients whether backward adds the gradient that passes the norm by
 * @param casts whether the norm may cast its output, which nobody reads in the model's type
 */
record NormPlace(boolean sums, boolean sumsGradients, boolean casts) {
    /** Outside a residual stream. */
    static final NormPlace ALONE = new NormPlace(false, false, true);
}
