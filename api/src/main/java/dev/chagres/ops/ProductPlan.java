package dev.chagres.ops;

import dev.chagres.bindings.ops.Ops;

/**
 * Which of cuBLASLt's kernels computes a {@link MatrixProduct}. Several fit most products; they sum in another order, so that
 * results differ by rounding. The reference has one, so that both give the same there.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code OpsProductPlan} in {@code ops.h}.
 */
public enum ProductPlan {
    /** The first that cuBLASLt's heuristic names: the one that Transformer Engine takes, so that results have its bits. */
    FIRST(Ops.OPS_PLAN_FIRST()),
    /**
     * The fastest of the heuristic's first eight, where it is at least 3 % faster than the first. They are timed at the first
     * product of its size, types and epilogue that neither adds to its result nor is captured; the call then waits for
     * the stream. A product that differs from a measured one by at most an eighth of each size takes that one's. The cache folder keeps what was measured, so that later processes take the same kernels at once.
     */
    MEASURED(Ops.OPS_PLAN_MEASURED());

    private final int code;

    ProductPlan(int code) {
        this.code = code;
    }

    /** Returns its number in {@code ops.h}. */
    int code() {
        return code;
    }
}
