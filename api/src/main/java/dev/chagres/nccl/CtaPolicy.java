package dev.chagres.nccl;

/**
 * How NCCL chooses the thread blocks (CTAs) of a communicator's kernels.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NCCL_CTA_POLICY_*} of {@code nccl.h}.
 */
public enum CtaPolicy {
    /** As many as are fastest. */
    DEFAULT(0),
    /** Few thread blocks if that costs little, so that other kernels have room. */
    EFFICIENCY(1),
    /** No thread blocks if copy engines can do the work. */
    ZERO(2);

    private final int code;

    CtaPolicy(int code) {
        this.code = code;
    }

    int code() {
        return code;
    }
}
