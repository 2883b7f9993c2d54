package dev.chagres.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Device;
import dev.chagres.bindings.Provider;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.samples.data.FastaSource;
import dev.chagres.samples.data.MaskedProteins;
import dev.chagres.samples.data.ShuffledSequences;
import dev.chagres.samples.esm.Esm2Config;
import dev.chagres.samples.esm.Esm2Size;
import dev.chagres.sharding.MeshDimension;
import dev.chagres.sharding.MeshShape;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Ranks;
import dev.chagres.train.Batch;
import dev.chagres.train.BatchLayout;
import dev.chagres.train.BatchShape;
import dev.chagres.train.SequencePacker;
import dev.chagres.train.StepResult;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --strategy pp}: ranks that have some of the layers each take the steps of one rank. */
@Tag("L0")
@Tag("L2")
class PipelineTrainingTest {
    private static final int STEPS = 20;
    private static final int CONTEXT = 64;
    private static final boolean CUDA = Provider.current() == Provider.CUDA;

    /** Loss and norm of one step. */
    private record Step(double loss, double norm) {}

    private static TrainingPlan plan(
            int copies, int pipeline, int tensor, int stages, int microBatches, TrainingRecipe recipe) {
        MeshShape mesh = MeshShape.ofOne()
                .with(MeshDimension.REPLICATE, copies)
                .with(MeshDimension.PIPELINE, pipeline)
                .with(MeshDimension.TENSOR, tensor);
        return new TrainingPlan(
                Esm2Size.TINY,
                FastaSource.shipped(),
                new BatchShape(BatchLayout.PACKED, 80 * microBatches, CONTEXT, microBatches),
                recipe,
                ProductPlan.FIRST,
                new RankLayout(
                        copies * pipeline * tensor,
                        RankStrategy.PP,
                        mesh,
                        OptimizerSharding.EACH_COPY,
                        false,
                        RankPlaces.THREADS,
                        stages),
                Steps.ENQUEUED,
                0,
                STEPS,
                new LearningRateSchedule(1e-3f, 0, STEPS, LearningRateSchedule.Decay.LINEAR, 0.1f),
                7,
                SavingPlan.NONE,
                null,
                null);
    }

    private static List<Step> steps(Esm2Training training, TrainingPlan plan) {
        Batch batch = new Batch(plan.shape());
        List<Step> steps = new ArrayList<>();
        StepResult result = new StepResult();
        try (training;
                SequencePacker packer = new SequencePacker(
                        plan.shape(), new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20)))) {
            for (int i = 0; i < STEPS; i++) {
                assertTrue(packer.fill(batch));
                training.upload(batch);
                training.step(1e-3f);
                training.result(result);
                steps.add(new Step(result.loss(), result.gradNorm()));
            }
        }
        return steps;
    }

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
        Assumptions.assumeTrue(Device.count() >= copies * pipeline * tensor, "skipped: fewer devices than ranks");
        Esm2Config config = new Esm2Config(layers, 64, 4, CONTEXT);
        TrainingPlan plan = plan(copies, pipeline, tensor, stages, microBatches, recipe);
        List<Step> expected;
        try (Device device = Device.open()) {
            expected = steps(DevicePlatform.training(device, config, plan), plan);
        }
        List<List<Step>> ranks =
                Ranks.local(plan.ranks()).run(rank -> steps(DevicePlatform.training(rank, config, plan), plan));
        boolean exact = recipe == TrainingRecipe.FP32 && !CUDA;
        double lossTolerance = exact ? 1e-5 : 1e-2;
        double normTolerance = exact ? 1e-4 : 5e-2;
        for (int i = 0; i < STEPS; i++) {
            Step one = expected.get(i);
            double loss = 0;
            for (int rank = 0; rank < ranks.size(); rank++) {
                Step step = ranks.get(rank).get(i);
                loss += rank % tensor == 0 ? step.loss : 0; // Ranks that split layers have the same.
                assertEquals(one.norm, step.norm, normTolerance * one.norm, "norm of step " + (i + 1));
            }
            assertEquals(one.loss, loss, lossTolerance * one.loss, "loss of step " + (i + 1));
        }
    }
}
