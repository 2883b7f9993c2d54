package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.trainer.RankLayout.CpCommType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --strategy tp}: ranks that split the layers of a model of 24 heads take the steps of one rank. */
@Tag("L0")
@Tag("L2")
class TensorParallelTrainingTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 192, 24, RankedSteps.CONTEXT);

    @ParameterizedTest
    @CsvSource({
        "1, 1, 1, FP32, false",
        "1, 2, 1, FP32, false",
        "1, 3, 1, FP32, false",
        "1, 4, 2, FP32, false",
        "1, 8, 1, FP32, false",
        "2, 2, 2, FP32, false",
        "2, 3, 4, FP32, false",
        "1, 4, 1, BF16, false",
        "1, 2, 1, FP8_DELAYED, false",
        "1, 2, 1, FP32, true",
        "2, 4, 2, FP32, true",
        "1, 8, 1, FP32, true",
        "1, 2, 1, BF16, true",
        "1, 2, 1, FP8_DELAYED, true",
        "1, 4, 2, FP8_CURRENT, true",
        "2, 2, 2, FP8_BLOCK, true"
    })
    void ranksTakeTheStepsOfOne(
            int copies, int tensor, int microBatches, TrainingRecipe recipe, boolean sequenceParallel) {
        RankLayout layout = new RankLayout(
                RankedSteps.mesh(1, copies, 1, 1, tensor),
                null,
                sequenceParallel,
                RankLayout.Places.THREADS,
                1,
                CpCommType.A2A,
                DType.FLOAT32);
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 256, RankedSteps.CONTEXT, microBatches);
        RankedSteps.assertSame(CONFIG, layout, shape, recipe);
    }
}
