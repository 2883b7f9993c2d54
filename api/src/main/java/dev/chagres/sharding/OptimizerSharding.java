package dev.chagres.sharding;

/**
 * Among which ranks of a {@link Mesh} {@link FullySharded} shares out what the optimizer keeps, where there are several copies of the
 * model.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code outer_dp_sharding_strategy} of Megatron-FSDP.
 */
public enum OptimizerSharding {
    /** Those along {@link MeshDimension#SHARD}: each copy of the model has all of it, and updates its own weights. */
    EACH_COPY,
    /**
     * All: less memory and work for each, but updated weights travel between copies, and gradients in each micro-batch where their stage
     * reduces in each.
     */
    ALL_RANKS
}
