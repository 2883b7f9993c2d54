package dev.chagres.sharding;

/**
 * What {@link FullySharded} shares out among the ranks, so that each keeps a part of it.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models (2020).
 */
public enum ZeroStage {
    /** The optimizer's moments and masters. Each rank has all weights and all gradients. */
    ONE,
    /** Gradients, too: a group's whole gradients exist from its backward to their reduction. */
    TWO,
    /** Weights, too: a group's whole weights exist while its layers run. */
    THREE
}
