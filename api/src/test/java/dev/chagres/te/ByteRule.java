package dev.chagres.te;

/** How close what two providers compute from the same input must be. */
enum ByteRule {
    /** Every byte: casts, copies, the largest magnitude of a given tensor, scales, histories. */
    EXACT,
    /** 99.9 % of the FP8 numbers, the others one step off: what arithmetic precedes, in an order or with an exp of one's own. */
    ROUNDED,
    /** 1e-3 in norm: other results of the same arithmetic, in FP32 or rounded to 16 bits. */
    COMPUTED,
    /** 1e-2 in norm: FP8 products and sums of bias gradients, which add in another order. */
    SUMMED;

    /** Share of the FP8 numbers of a function that must be equal. */
    static final double SHARE = 0.999;

    /** Returns the largest relative difference in norm. */
    double norm() {
        return this == COMPUTED ? 1e-3 : 1e-2;
    }
}
