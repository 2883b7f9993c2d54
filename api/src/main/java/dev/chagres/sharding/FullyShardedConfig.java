package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.internal.Checks;

/**
 * How {@link FullySharded} shares a model out over a mesh.
 *
 * <p>Threading: immutable.
 *
 * @param stage what ranks along {@link MeshDimension#SHARD} share out
 * @param optimizer among which ranks what the optimizer keeps is shared out
 * @param reduceType in which gradients travel and are summed over ranks: FLOAT32, BFLOAT16 or FLOAT16. Each rank's own, and sums of
 *     micro-batches, stay FP32. With 16 bits half as many bytes travel, and each rank's gradient and each sum is rounded to them
 * @param weightGather in which memory weights are gathered
 */
public record FullyShardedConfig(
        ZeroStage stage, OptimizerSharding optimizer, DType reduceType, WeightGather weightGather) {
    /**
     * Checks that everything is there.
     *
     * @throws IllegalArgumentException when gradients cannot be summed in the type
     */
    public FullyShardedConfig {
        Checks.given("stage", stage);
        Checks.given("optimizer", optimizer);
        GradientCasts.checked(reduceType);
        Checks.given("weightGather", weightGather);
    }

    /** Returns the configuration of a stage, with an optimizer for each copy of the model, sums in FP32, and no windows. */
    public static FullyShardedConfig of(ZeroStage stage) {
        return new FullyShardedConfig(stage, OptimizerSharding.EACH_COPY, DType.FLOAT32, WeightGather.DEVICE);
    }

    /** Returns the same with what the optimizer keeps shared out among other ranks. */
    public FullyShardedConfig withOptimizer(OptimizerSharding newOptimizer) {
        return new FullyShardedConfig(stage, newOptimizer, reduceType, weightGather);
    }

    /**
     * Returns the same with gradients summed in another type.
     *
     * <p>Source: {@code reduce_dtype} of PyTorch's {@code MixedPrecisionPolicy}.
     *
     * @throws IllegalArgumentException when it is not FLOAT32, BFLOAT16 or FLOAT16
     */
    public FullyShardedConfig withReduceType(DType newReduceType) {
        return new FullyShardedConfig(stage, optimizer, newReduceType, weightGather);
    }

    /** Returns the same with weights gathered in other memory. */
    public FullyShardedConfig withWeightGather(WeightGather newWeightGather) {
        return new FullyShardedConfig(stage, optimizer, reduceType, newWeightGather);
    }
}
