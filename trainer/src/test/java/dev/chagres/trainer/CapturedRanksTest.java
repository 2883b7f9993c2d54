package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.MultiprocessorMargin;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.recipe.CastStatistics;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code --graph on}: steps of several micro-batches and ranks that are captured and replayed, with the sums over ranks inside. */
@Tag("L0")
@Tag("L2")
class CapturedRanksTest {
    private static final int STEPS = 10;
    private static final int CONTEXT = 64;
    private static final Esm2Config CONFIG = new Esm2Config(2, 192, 24, CONTEXT);
    private static final boolean CUDA = Provider.current() == Provider.CUDA;

    /** Loss and norm of one step. */
    private record Step(double loss, double norm) {}

    /** What a rank says after its steps. */
    private record Trained(List<Step> steps, String explained) {}

    private static TrainingPlan plan(
            int copies, int tensor, int microBatches, TrainingRecipe recipe, ModelSetup.Steps enqueuing) {
        return new TrainingPlan(
                TrainingPlan.Start.of(Esm2Size.TINY, TrainingPlan.ModelForm.NVIDIA),
                new TrainingData.Proteins(FastaSource.shipped()),
                new BatchShape(BatchLayout.PACKED, 384, CONTEXT, microBatches),
                PackingOrder.AS_GIVEN,
                recipe,
                Recomputation.ACTIVATION,
                ActivationOffload.none(),
                RankLayout.of(RankedSteps.mesh(1, copies, 1, 1, tensor)),
                new ModelSetup.Enqueuing(ProductPlan.FIRST, MultiprocessorMargin.NONE, enqueuing, 0),
                STEPS,
                new LearningRateSchedule(1e-3f, 0, STEPS, LearningRateSchedule.Decay.LINEAR, 0.1f),
                ModelSetup.ADAM,
                DType.FLOAT32,
                7,
                SavingPlan.NONE,
                null,
                null,
                EvaluationPlan.NONE,
                null);
    }

    private static Trained train(ModelTraining training, TrainingPlan plan) {
        Batch batch = new Batch(plan.shape());
        List<Step> steps = new ArrayList<>();
        StepResult result = new StepResult();
        try (training;
                SequencePacker packer = new SequencePacker(
                        plan.shape(), new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20)))) {
            for (int i = 0; i < STEPS; i++) {
                assertTrue(packer.fill(batch));
                training.upload(batch);
                training.step(1e-3f * (1 + i % 3));
                training.result(result);
                steps.add(new Step(result.loss(), result.gradNorm()));
            }
            return new Trained(steps, String.valueOf(training.explainSteps()));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "1, 1, 3, FP32",
        "2, 1, 2, FP32",
        "3, 1, 6, FP32",
        "2, 1, 3, FP32",
        "2, 1, 4, BF16",
        "2, 1, 4, FP8_DELAYED",
        "1, 2, 1, FP32",
        "2, 2, 4, FP32"
    })
    void replayedStepsAreThoseOfOneRank(int copies, int tensor, int microBatches, TrainingRecipe recipe) {
        int count = copies * tensor;
        DevicesNeeded.assume(count);
        TrainingPlan enqueued = plan(copies, tensor, microBatches, recipe, ModelSetup.Steps.ENQUEUED);
        TrainingPlan captured = plan(copies, tensor, microBatches, recipe, ModelSetup.Steps.CAPTURED);
        List<Step> expected;
        try (Device device = Device.open()) {
            expected = train(ModelTraining.of(device, enqueued.setup(CONFIG)), enqueued)
                    .steps();
        }
        List<Trained> ranks = count == 1
                ? List.of(ofOne(captured))
                : Ranks.local(count).run(rank -> train(ModelTraining.of(rank, captured.setup(CONFIG)), captured));
        boolean exact = recipe == TrainingRecipe.FP32 && !CUDA;
        for (int i = 0; i < STEPS; i++) {
            double loss = 0;
            for (int rank = 0; rank < count; rank += tensor) {
                loss += ranks.get(rank).steps().get(i).loss();
            }
            assertEquals(expected.get(i).loss(), loss, exact ? 1e-5 : 1e-2, "loss of step " + i);
            double norm = expected.get(i).norm();
            assertEquals(norm, ranks.getFirst().steps().get(i).norm(), norm * (exact ? 1e-4 : 5e-2), "norm of " + i);
        }
        for (Trained one : ranks) {
            assertEquals(firstLine(ranks.getFirst()), firstLine(one));
            assertTrue(Integer.parseInt(firstLine(one).split("[ ,]")[2]) >= STEPS / 2, one.explained());
        }
    }

    /** Of a captured run each third step is measured, and enqueued for it; the steps between are replayed. */
    @Test
    void stepsWhoseCastsAreMeasuredAreEnqueued() {
        TrainingPlan plan = plan(1, 1, 2, TrainingRecipe.FP8_DELAYED, ModelSetup.Steps.CAPTURED);
        Batch batch = new Batch(plan.shape());
        try (Device device = Device.open();
                ModelTraining training = ModelTraining.of(device, plan.setup(CONFIG));
                SequencePacker packer = new SequencePacker(
                        plan.shape(), new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20)))) {
            training.measureCasts(3);
            for (int i = 0; i < STEPS; i++) {
                assertTrue(packer.fill(batch));
                training.upload(batch);
                training.step(1e-3f);
                training.result(new StepResult());
                List<CastStatistics> measured = training.castStatistics();
                assertEquals(i % 3 == 0, !measured.isEmpty(), "step " + i);
                for (CastStatistics one : measured) {
                    assertEquals(i, one.step(), one.toString());
                    assertTrue(one.amax() > 0, one.toString());
                }
            }
            String explained = String.valueOf(training.explainSteps());
            assertTrue(explained.contains(", 4 of them because their casts were measured;"), explained);
            assertTrue(Integer.parseInt(explained.split("[ ,]")[2]) >= 3, explained);
        }
    }

    /** Says how many steps were replayed; the lines behind it name nodes, of which ranks have more and less. */
    private static String firstLine(Trained one) {
        return one.explained().lines().findFirst().orElseThrow();
    }

    private static Trained ofOne(TrainingPlan plan) {
        try (Device device = Device.open()) {
            return train(ModelTraining.of(device, plan.setup(CONFIG)), plan);
        }
    }
}
