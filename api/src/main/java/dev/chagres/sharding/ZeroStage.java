package dev.chagres.sharding;

/**
 * Which state {@link FullySharded} shards among the ranks.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models (2020).
 */
public enum ZeroStage {
    /** The optimizer's moments and masters. Each rank has all weights and all gradients. */
    ONE,
    /** Also gradients: a group's whole gradients exist from its backward to their reduction. */
    TWO,
    /** Also weights: a group's whole weights exist while its layers run. */
    THREE
}
