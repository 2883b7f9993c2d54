package dev.chagres.sharding;

/**
 * When ranks of {@link FullySharded} sum the gradients of a step that has several micro-batches.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code set_requires_gradient_sync} of PyTorch's {@code FSDPModule}.
 */
public enum GradientSync {
    /** In each micro-batch, of {@link ZeroStage#THREE} alone: memory for whole gradients of two groups of each size. */
    EACH_MICRO_BATCH,
    /**
     * Once a step: micro-batches before the last add up on each rank and communicate no gradients. A step with several micro-batches takes
     * memory for all whole gradients, in FP32.
     */
    LAST_MICRO_BATCH;

    /** Returns when ranks do so that are told nothing else. */
    static GradientSync of(ZeroStage stage) {
        return stage == ZeroStage.THREE ? EACH_MICRO_BATCH : LAST_MICRO_BATCH;
    }
}
