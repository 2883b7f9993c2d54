package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.RankLayout.CpCommType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks of a model with the exact GELU and token dropout take the steps of one rank. */
@Tag("L0")
@Tag("L2")
class PublishedFormTrainingTest {
    private static final Esm2Config CONFIG =
            new Esm2Config(2, 192, 24, RankedSteps.CONTEXT).withForm(Esm2Form.published());

    @ParameterizedTest
    @CsvSource({
        "1, 1, 1, 1, 2, FP32, false, 2, PACKED",
        "1, 1, 1, 1, 2, FP32, true, 2, PACKED",
        "1, 2, 1, 1, 3, FP32, true, 2, PADDED",
        "2, 1, 1, 1, 2, FP32, true, 3, PACKED",
        "1, 1, 2, 1, 1, FP32, false, 2, PACKED",
        "2, 1, 1, 1, 1, BF16, false, 3, PADDED",
        "1, 1, 1, 1, 2, FP8_DELAYED, true, 2, PACKED",
        "1, 1, 1, 3, 1, FP32, false, 1, PADDED",
        "1, 1, 2, 2, 1, FP32, false, 2, PACKED",
        "1, 1, 1, 2, 2, FP32, true, 2, PACKED",
        "2, 1, 1, 2, 1, FP32, false, 2, PACKED"
    })
    void ranksTakeTheStepsOfOne(
            int pipeline,
            int replicate,
            int shard,
            int context,
            int tensor,
            TrainingRecipe recipe,
            boolean sequenceParallel,
            int microBatches,
            BatchLayout layout) {
        RankLayout ranks = new RankLayout(
                RankedSteps.mesh(pipeline, replicate, shard, context, tensor),
                shard == 1 ? null : FullyShardedConfig.of(ZeroStage.THREE),
                sequenceParallel,
                RankLayout.Places.THREADS,
                1,
                CpCommType.A2A,
                DType.FLOAT32);
        BatchShape shape = new BatchShape(layout, 192 * microBatches, RankedSteps.CONTEXT, microBatches);
        RankedSteps.assertSame(CONFIG, ranks, shape, recipe);
    }

    /** Each exchange of context-parallel attention, whose passes have other sequences. */
    @ParameterizedTest
    @EnumSource
    void partsOfSequencesCountTheirMasksTogether(CpCommType exchange) {
        DevicesNeeded.assume(2);
        RankLayout ranks = RankLayout.of(RankedSteps.mesh(1, 1, 1, 2, 1)).with(exchange);
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 256, RankedSteps.CONTEXT, 2);
        RankedSteps.assertSame(CONFIG, ranks, shape, TrainingRecipe.FP32);
    }
}
