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

/** {@code --strategy cp}: ranks that share out the tokens of a model of 24 heads take the steps of one rank. */
@Tag("L0")
@Tag("L2")
class ContextParallelTrainingTest {
    private static final int STEPS = 20;
    private static final int CONTEXT = 64;
    private static final int TOKENS = 256;
    private static final Esm2Config CONFIG = new Esm2Config(2, 192, 24, CONTEXT);
    private static final boolean CUDA = Provider.current() == Provider.CUDA;

    /** Loss and norm of one step. */
    private record Step(double loss, double norm) {}

    private static TrainingPlan plan(
            int copies, int context, int microBatches, TrainingRecipe recipe, BatchLayout layout) {
        MeshShape mesh = MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.CONTEXT, context);
        return new TrainingPlan(
                Esm2Size.TINY,
                FastaSource.shipped(),
                new BatchShape(layout, TOKENS, CONTEXT, microBatches),
                recipe,
                ProductPlan.FIRST,
                new RankLayout(
                        copies * context,
                        RankStrategy.CP,
                        mesh,
                        OptimizerSharding.EACH_COPY,
                        false,
                        RankPlaces.THREADS),
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
        "1, 1, 1, FP32, PACKED",
        "1, 2, 1, FP32, PACKED",
        "1, 3, 1, FP32, PACKED",
        "1, 4, 2, FP32, PACKED",
        "1, 8, 1, FP32, PACKED",
        "2, 2, 2, FP32, PACKED",
        "2, 3, 4, FP32, PACKED",
        "1, 3, 2, FP32, PADDED",
        "1, 4, 1, BF16, PACKED",
        "1, 2, 1, FP8_DELAYED, PACKED",
        "1, 3, 1, FP8_CURRENT, PACKED",
        "1, 2, 2, FP8_BLOCK, PACKED",
        "1, 2, 1, FP16, PACKED"
    })
    void ranksTakeTheStepsOfOne(int copies, int context, int microBatches, TrainingRecipe recipe, BatchLayout layout) {
        Assumptions.assumeTrue(Device.count() >= copies * context, "skipped: fewer devices than ranks");
        TrainingPlan plan = plan(copies, context, microBatches, recipe, layout);
        List<Step> expected;
        try (Device device = Device.open()) {
            expected = steps(DevicePlatform.training(device, CONFIG, plan), plan);
        }
        List<List<Step>> ranks =
                Ranks.local(plan.ranks()).run(rank -> steps(DevicePlatform.training(rank, CONFIG, plan), plan));
        boolean exact = recipe == TrainingRecipe.FP32 && !CUDA;
        double lossTolerance = exact ? 1e-5 : 1e-2;
        double normTolerance = exact ? 1e-4 : 5e-2;
        for (int i = 0; i < STEPS; i++) {
            Step one = expected.get(i);
            double loss = 0;
            for (List<Step> of : ranks) {
                loss += of.get(i).loss;
                assertEquals(one.norm, of.get(i).norm, normTolerance * one.norm, "norm of step " + (i + 1));
            }
            assertEquals(one.loss, loss, lossTolerance * one.loss, "loss of step " + (i + 1));
        }
    }
}
