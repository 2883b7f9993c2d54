package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.internal.Checks;
import dev.chagres.mesh.MeshDimension;

/**
 * How {@link FullySharded} shards a model over a communicator or a mesh.
 *
 * <p>Threading: immutable.
 *
 * @param stage which state the ranks of a communicator, or those along {@link MeshDimension#SHARD} of a mesh, shard
 * @param optimizer among which ranks the optimizer's state is sharded
 * @param reduceType in which gradients are sent and summed over ranks: FLOAT32, BFLOAT16 or FLOAT16. With 16 bits half as many bytes are
 *     sent, and each rank's gradient and each sum is rounded to 16 bits. Sums of micro-batches stay FP32. Each rank's own gradients stay
 *     FP32, too, except with {@link GradientSync#EACH_MICRO_BATCH} those that {@link dev.chagres.parameter.Parameter#isWrittenByProducts only
 *     matrix products write}, of weights of this type: products write them in 16 bits
 * @param gradientReduction how gradients are reduced and scattered
 * @param weightGather in which memory weights are gathered
 * @param reshard when gathered weights are freed; {@code AFTER_FORWARD} except in {@link ZeroStage#THREE}
 * @param gradientSync in which micro-batches gradients are summed; {@code LAST_MICRO_BATCH} except in {@link ZeroStage#THREE}
 */
public record FullyShardedConfig(
        ZeroStage stage,
        OptimizerSharding optimizer,
        DType reduceType,
        GradientReduction gradientReduction,
        WeightGather weightGather,
        Reshard reshard,
        GradientSync gradientSync) {
    /**
     * Checks that everything is there.
     *
     * @throws IllegalArgumentException when gradients cannot be summed in the type, or the stage gathers no weights that could be kept, or
     *     does not sum in each micro-batch
     */
    public FullyShardedConfig {
        Checks.given("stage", stage, "optimizer", optimizer);
        GradientCasts.checked(reduceType);
        Checks.given("gradientReduction", gradientReduction, "weightGather", weightGather);
        if (Checks.given("reshard", reshard) != Reshard.AFTER_FORWARD && stage != ZeroStage.THREE) {
            throw new IllegalArgumentException("reshard: expected AFTER_FORWARD in stage " + stage
                    + ", in which each rank has all weights, got " + reshard);
        }
        if (Checks.given("gradientSync", gradientSync) != GradientSync.LAST_MICRO_BATCH && stage != ZeroStage.THREE) {
            throw new IllegalArgumentException("gradientSync: expected LAST_MICRO_BATCH in stage " + stage
                    + ", which sums gradients once a step, got " + gradientSync);
        }
    }

    /**
     * Returns the configuration of a stage, with the optimizer's state sharded within each copy of the model, sums in FP32 by {@code
     * ncclReduceScatter}, no windows, and the least memory: stage 3 frees weights after each layer and sums gradients in each micro-batch.
     */
    public static FullyShardedConfig of(ZeroStage stage) {
        return new FullyShardedConfig(
                Checks.given("stage", stage),
                OptimizerSharding.EACH_COPY,
                DType.FLOAT32,
                GradientReduction.REDUCE_SCATTER,
                WeightGather.DEVICE,
                Reshard.AFTER_FORWARD,
                GradientSync.of(stage));
    }

    /** Returns the same with the optimizer's state sharded among other ranks. */
    public FullyShardedConfig withOptimizer(OptimizerSharding newOptimizer) {
        return new FullyShardedConfig(
                stage, newOptimizer, reduceType, gradientReduction, weightGather, reshard, gradientSync);
    }

    /**
     * Returns the same with gradients summed in another type.
     *
     * <p>Source: {@code reduce_dtype} of PyTorch's {@code MixedPrecisionPolicy}.
     *
     * @throws IllegalArgumentException when it is not FLOAT32, BFLOAT16 or FLOAT16
     */
    public FullyShardedConfig withReduceType(DType newReduceType) {
        return new FullyShardedConfig(
                stage, optimizer, newReduceType, gradientReduction, weightGather, reshard, gradientSync);
    }

    /** Returns the same with gradients reduced and scattered in another way. */
    public FullyShardedConfig withGradientReduction(GradientReduction newGradientReduction) {
        return new FullyShardedConfig(
                stage, optimizer, reduceType, newGradientReduction, weightGather, reshard, gradientSync);
    }

    /** Returns the same with weights gathered in other memory. */
    public FullyShardedConfig withWeightGather(WeightGather newWeightGather) {
        return new FullyShardedConfig(
                stage, optimizer, reduceType, gradientReduction, newWeightGather, reshard, gradientSync);
    }

    /**
     * Returns the same with weights of stage 3 freed at another time.
     *
     * <p>Source: {@code reshard_after_forward} of PyTorch's {@code fully_shard}.
     *
     * @throws IllegalArgumentException when it is not {@code AFTER_FORWARD} in stage 1 or 2
     */
    public FullyShardedConfig withReshard(Reshard newReshard) {
        return new FullyShardedConfig(
                stage, optimizer, reduceType, gradientReduction, weightGather, newReshard, gradientSync);
    }

    /**
     * Returns the same with gradients of stage 3 summed in other micro-batches.
     *
     * <p>Source: {@code set_requires_gradient_sync} of PyTorch's {@code FSDPModule}.
     *
     * @throws IllegalArgumentException when it is not {@code LAST_MICRO_BATCH} in stage 1 or 2
     */
    public FullyShardedConfig withGradientSync(GradientSync newGradientSync) {
        return new FullyShardedConfig(
                stage, optimizer, reduceType, gradientReduction, weightGather, reshard, newGradientSync);
    }
}
