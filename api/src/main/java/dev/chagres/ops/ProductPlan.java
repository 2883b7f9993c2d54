package dev.chagres.ops;

import dev.chagres.bindings.ops.Ops;

/**
 * How the cuBLASLt kernel of a {@link MatrixProduct} is chosen. Most products can be computed by several kernels, which sum in different
 * orders, so that results differ by rounding. The reference has one kernel, so both plans give the same there.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code OpsProductPlan} in {@code ops.h}.
 */
public enum ProductPlan {
    /** The first choice of cuBLASLt's heuristic, which Transformer Engine takes, too, so that results have its bits. */
    FIRST(Ops.OPS_PLAN_FIRST()),
    /**
     * The fastest of the heuristic's first eight, if it is at least 3 % faster than the first. They are timed at the first product of a
     * size, types and epilogue that neither accumulates nor is captured; that call waits for the stream. A product of which each size differs
     * by at most an eighth from that of a measured one takes the kernel of that one. The cache folder keeps the choices for later processes.
     */
    MEASURED(Ops.OPS_PLAN_MEASURED());

    private final int code;

    ProductPlan(int code) {
        this.code = code;
    }

    /** Returns the constant of {@code ops.h}. */
    int code() {
        return code;
    }
}
