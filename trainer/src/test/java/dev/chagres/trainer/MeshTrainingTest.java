package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.GradientSync;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Reshard;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.RankLayout.CpCommType;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --mesh}: ranks of any product of strategies take the steps of one rank, with a model of 24 heads. */
@Tag("L0")
@Tag("L2")
class MeshTrainingTest {
    /** What ranks along {@code SHARD} and {@code CONTEXT} shard. */
    private enum Kept {
        ALL,
        ZERO1,
        ZERO2,
        ZERO3,
        /** Gathered and summed once a step. */
        ZERO3_ONCE,
        /** With the optimizer's state sharded among copies, too. */
        HSDP_OF_ALL;

        private @Nullable FullyShardedConfig config() {
            FullyShardedConfig three = FullyShardedConfig.of(ZeroStage.THREE);
            return switch (this) {
                case ALL -> null;
                case ZERO1 -> FullyShardedConfig.of(ZeroStage.ONE);
                case ZERO2 -> FullyShardedConfig.of(ZeroStage.TWO);
                case ZERO3 -> three;
                case ZERO3_ONCE ->
                    three.withReshard(Reshard.AFTER_STEP).withGradientSync(GradientSync.LAST_MICRO_BATCH);
                case HSDP_OF_ALL -> three.withOptimizer(OptimizerSharding.ALL_RANKS);
            };
        }
    }

    @ParameterizedTest
    @CsvSource({
        "1, 1, 2, 1, 2, ZERO3, false, 1, 4, FP32, A2A",
        "1, 1, 2, 1, 2, ZERO1, true, 1, 2, BF16, A2A",
        "1, 2, 2, 1, 2, HSDP_OF_ALL, true, 1, 4, FP32, A2A",
        "1, 1, 2, 1, 4, ZERO2, false, 1, 3, FP32, A2A",
        "1, 1, 2, 2, 1, ZERO3, false, 1, 3, FP32, A2A",
        "1, 1, 1, 4, 1, ZERO2, false, 1, 2, FP32, A2A",
        "1, 1, 1, 2, 2, ALL, false, 1, 2, FP32, A2A",
        "1, 2, 1, 2, 2, ALL, false, 1, 4, FP32, A2A",
        "1, 1, 2, 2, 2, ZERO3, false, 1, 3, FP8_DELAYED, A2A",
        "2, 1, 2, 1, 1, ZERO1, false, 1, 5, FP32, A2A",
        "2, 1, 2, 1, 2, ZERO2, true, 2, 6, FP32, A2A",
        "2, 1, 1, 2, 1, ALL, false, 2, 3, FP32, A2A",
        "2, 2, 1, 2, 1, ALL, false, 1, 4, BF16, A2A",
        "2, 1, 2, 2, 1, ZERO1, false, 1, 4, FP8_DELAYED, A2A",
        "2, 1, 1, 2, 2, ZERO1, false, 1, 3, FP16, A2A",
        "4, 1, 1, 1, 2, ALL, true, 1, 5, FP32, A2A",
        "1, 1, 2, 1, 2, ZERO3, true, 1, 2, FP8_CURRENT, A2A",
        "2, 1, 2, 1, 2, ZERO1, true, 1, 3, FP8_DELAYED, A2A",
        "1, 1, 2, 2, 2, ZERO3, false, 1, 2, FP32, P2P",
        "2, 1, 1, 2, 2, ZERO1, false, 1, 3, BF16, P2P",
        "1, 1, 1, 2, 2, ALL, true, 1, 2, FP32, A2A",
        "1, 1, 2, 2, 2, ZERO2, true, 1, 3, FP8_DELAYED, A2A",
        "1, 1, 1, 2, 2, ALL, true, 1, 2, FP8_CURRENT, P2P",
        "1, 1, 1, 2, 2, ALL, true, 1, 2, FP8_BLOCK, ALL_GATHER",
        "1, 2, 1, 2, 2, ALL, true, 1, 4, FP32, ALL_GATHER",
        "2, 1, 1, 2, 2, ZERO1, true, 1, 3, BF16, ALL_GATHER",
        "1, 1, 2, 1, 1, ZERO3_ONCE, false, 1, 5, FP32, A2A",
        "1, 2, 2, 1, 1, ZERO3, false, 1, 6, FP32, A2A",
        "2, 1, 2, 1, 1, ZERO3_ONCE, false, 1, 5, FP32, A2A",
        "2, 1, 2, 1, 1, ZERO3, false, 2, 7, FP32, A2A",
        "2, 2, 2, 1, 1, ZERO3_ONCE, false, 1, 6, FP32, A2A",
        "2, 1, 2, 1, 1, ZERO3_ONCE, false, 1, 4, FP8_DELAYED, A2A",
        "2, 1, 2, 1, 1, ZERO3, false, 1, 4, FP8_CURRENT, A2A"
    })
    void ranksTakeTheStepsOfOne(
            int pipeline,
            int replicate,
            int shard,
            int context,
            int tensor,
            Kept kept,
            boolean sequenceParallel,
            int stages,
            int microBatches,
            TrainingRecipe recipe,
            CpCommType exchange) {
        RankLayout layout = new RankLayout(
                RankedSteps.mesh(pipeline, replicate, shard, context, tensor),
                kept.config(),
                sequenceParallel,
                RankLayout.Places.THREADS,
                stages,
                exchange,
                DType.FLOAT32);
        Esm2Config config = new Esm2Config(Math.max(2, pipeline * stages), 192, 24, RankedSteps.CONTEXT);
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 80 * microBatches, RankedSteps.CONTEXT, microBatches);
        RankedSteps.assertSame(config, layout, shape, recipe);
    }
}
