package dev.chagres.trainer;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.trainer.RankLayout.CpCommType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --strategy cp}: context-parallel ranks of a model of 24 heads take the steps of one rank. */
@Tag("L0")
@Tag("L2")
class ContextParallelTrainingTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 192, 24, RankedSteps.CONTEXT);

    @ParameterizedTest
    @CsvSource({
        "1, 1, 1, FP32, PACKED, A2A",
        "1, 2, 1, FP32, PACKED, A2A",
        "1, 3, 1, FP32, PACKED, A2A",
        "1, 4, 2, FP32, PACKED, A2A",
        "1, 8, 1, FP32, PACKED, A2A",
        "2, 2, 2, FP32, PACKED, A2A",
        "2, 3, 4, FP32, PACKED, A2A",
        "1, 3, 2, FP32, PADDED, A2A",
        "1, 4, 1, BF16, PACKED, A2A",
        "1, 2, 1, FP8_DELAYED, PACKED, A2A",
        "1, 3, 1, FP8_CURRENT, PACKED, A2A",
        "1, 2, 2, FP8_BLOCK, PACKED, A2A",
        "1, 2, 1, FP16, PACKED, A2A",
        "1, 2, 1, FP32, PACKED, P2P",
        "1, 5, 1, FP32, PACKED, P2P",
        "1, 8, 1, FP32, PACKED, P2P",
        "2, 2, 2, FP32, PACKED, P2P",
        "1, 3, 1, BF16, PACKED, P2P",
        "1, 2, 1, FP8_DELAYED, PACKED, P2P",
        "1, 3, 2, FP8_BLOCK, PACKED, P2P",
        "1, 2, 1, FP16, PACKED, P2P",
        "1, 5, 1, FP32, PACKED, ALL_GATHER",
        "2, 2, 2, BF16, PACKED, ALL_GATHER",
        "1, 3, 1, FP8_DELAYED, PACKED, ALL_GATHER"
    })
    void ranksTakeTheStepsOfOne(
            int copies, int context, int microBatches, TrainingRecipe recipe, BatchLayout layout, CpCommType exchange) {
        RankLayout ranks =
                RankLayout.of(RankedSteps.mesh(1, copies, 1, context, 1)).with(exchange);
        BatchShape shape = new BatchShape(layout, 256, RankedSteps.CONTEXT, microBatches);
        RankedSteps.assertSame(CONFIG, ranks, shape, recipe);
    }
}
