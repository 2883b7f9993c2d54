package dev.chagres.sharding;

import dev.chagres.internal.Checks;

/**
 * How {@link FullySharded} shares a model out over a mesh.
 *
 * <p>Threading: immutable.
 *
 * @param stage what ranks along {@link MeshDimension#SHARD} share out
 * @param optimizer among which ranks what the optimizer keeps is shared out
 */
public record FullyShardedConfig(ZeroStage stage, OptimizerSharding optimizer) {
    /** Checks that everything is there. */
    public FullyShardedConfig {
        Checks.given("stage", stage);
        Checks.given("optimizer", optimizer);
    }

    /** Returns the configuration of a stage, with an optimizer for each copy of the model. */
    public static FullyShardedConfig of(ZeroStage stage) {
        return new FullyShardedConfig(stage, OptimizerSharding.EACH_COPY);
    }

    /** Returns the same with what the optimizer keeps shared out among other ranks. */
    public FullyShardedConfig withOptimizer(OptimizerSharding newOptimizer) {
        return new FullyShardedConfig(stage, newOptimizer);
    }
}
