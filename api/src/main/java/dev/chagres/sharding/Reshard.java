package dev.chagres.sharding;

/**
 * When ranks of {@link ZeroStage#THREE} give back weights that they have gathered. Results are the same bits.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code reshard_after_forward} and {@code set_reshard_after_backward} of PyTorch's {@code fully_shard}.
 */
public enum Reshard {
    /** When a layer has read them, in forward and in backward: memory for two groups of each size, and a gather for each of both. */
    AFTER_FORWARD,
    /**
     * When the optimizer's step changes them: memory for all weights, and one gather a step, however many micro-batches it has. Gradients,
     * masters and moments stay shared out.
     */
    AFTER_STEP
}
