package dev.chagres.sharding;

/**
 * When ranks of {@link ZeroStage#THREE} free weights that they have gathered. Results have the same bits.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code reshard_after_forward} and {@code set_reshard_after_backward} of PyTorch's {@code fully_shard}.
 */
public enum Reshard {
    /**
     * Once a layer has read them, in forward and in backward: takes memory for two groups of each size, and one gather in forward and one
     * in backward.
     */
    AFTER_FORWARD,
    /**
     * When the optimizer's step changes them: takes memory for all weights, and one gather a step for any number of micro-batches.
     * Gradients, masters and moments stay sharded.
     */
    AFTER_STEP
}
