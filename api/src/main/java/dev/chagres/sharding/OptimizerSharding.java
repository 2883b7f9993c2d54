package dev.chagres.sharding;

import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;

/**
 * Among which ranks of a {@link Mesh} {@link FullySharded} shards the optimizer's state, if there are several copies of the model.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code outer_dp_sharding_strategy} of Megatron-FSDP.
 */
public enum OptimizerSharding {
    /** The ranks along {@link MeshDimension#SHARD}: each copy of the model has the whole state, and updates its own weights. */
    EACH_COPY,
    /**
     * All ranks: less memory and work for each, but copies exchange updated weights, and gradients in each micro-batch if the stage reduces
     * in each.
     */
    ALL_RANKS
}
