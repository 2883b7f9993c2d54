package dev.chagres.sharding;

/**
 * When ranks of {@link FullySharded} sum the gradients of a step that has several micro-batches.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code set_requires_gradient_sync} of PyTorch's {@code FSDPModule}.
 */
public enum GradientSync {
    /** In each micro-batch, for {@link ZeroStage#THREE} only. Takes memory for whole gradients of two groups of each size. */
    EACH_MICRO_BATCH,
    /**
     * Once a step: gradients of micro-batches before the last are added up on each rank and not communicated. A step with several
     * micro-batches takes memory for all whole gradients, in FP32.
     */
    LAST_MICRO_BATCH;

    /** Returns the default of a stage. */
    static GradientSync of(ZeroStage stage) {
        return stage == ZeroStage.THREE ? EACH_MICRO_BATCH : LAST_MICRO_BATCH;
    }
}
