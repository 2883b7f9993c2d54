package dev.chagres.trainer;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.trainer.RankLayout.CpCommType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --strategy pp}: ranks that have some of the layers each take the steps of one rank. */
@Tag("L0")
@Tag("L2")
class PipelineTrainingTest {
    @ParameterizedTest
    @CsvSource({
        "1, 1, 1, 1, 2, 3, FP32",
        "1, 2, 1, 1, 1, 3, FP32",
        "1, 2, 1, 1, 4, 3, FP32",
        "1, 3, 1, 1, 2, 4, FP32",
        "1, 4, 1, 1, 6, 6, FP32",
        "1, 8, 1, 1, 4, 9, FP32",
        "2, 2, 1, 1, 3, 2, FP32",
        "2, 3, 1, 1, 4, 3, FP32",
        "1, 3, 1, 1, 4, 4, BF16",
        "1, 2, 1, 1, 2, 2, FP16",
        "1, 3, 1, 1, 3, 4, FP8_DELAYED",
        "1, 2, 1, 1, 2, 2, FP8_CURRENT",
        "1, 2, 1, 2, 4, 5, FP32",
        "2, 2, 1, 2, 6, 4, BF16",
        "1, 3, 1, 2, 6, 6, FP8_DELAYED",
        "1, 2, 2, 1, 3, 3, FP32",
        "2, 2, 2, 1, 4, 2, FP32",
        "1, 2, 4, 2, 4, 4, BF16",
        "1, 2, 2, 1, 2, 2, FP8_DELAYED"
    })
    void ranksTakeTheStepsOfOne(
            int copies, int pipeline, int tensor, int stages, int microBatches, int layers, TrainingRecipe recipe) {
        Esm2Config config = new Esm2Config(layers, 64, 4, RankedSteps.CONTEXT);
        RankLayout layout = new RankLayout(
                RankedSteps.mesh(pipeline, copies, 1, 1, tensor),
                null,
                false,
                RankLayout.Places.THREADS,
                stages,
                CpCommType.A2A,
                DType.FLOAT32);
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 80 * microBatches, RankedSteps.CONTEXT, microBatches);
        RankedSteps.assertSame(config, layout, shape, recipe);
    }
}
