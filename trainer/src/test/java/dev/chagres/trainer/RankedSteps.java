package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.PackingOrder;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Size;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.pass.ActivationOffload;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Compares the steps of several ranks with those of one. */
final class RankedSteps {
    static final int CONTEXT = 64;
    /** {@code -Dchagres.test.steps} takes more. */
    private static final int STEPS = Integer.getInteger("chagres.test.steps", 8);

    private static final boolean CUDA = Provider.current() == Provider.CUDA;

    /** Loss and norm of one step. */
    private record Step(double loss, double norm) {}

    /** What the steps of one rank depend on. */
    private record OneRank(Esm2Config config, BatchShape shape, TrainingRecipe recipe) {}

    /** Many layouts are compared with the same steps of one rank: it takes them once. */
    private static final Map<OneRank, List<Step>> OF_ONE_RANK = new ConcurrentHashMap<>();

    private RankedSteps() {}

    static MeshShape mesh(int pipeline, int replicate, int shard, int context, int tensor) {
        return MeshShape.ofOne()
                .with(MeshDimension.PIPELINE, pipeline)
                .with(MeshDimension.REPLICATE, replicate)
                .with(MeshDimension.SHARD, shard)
                .with(MeshDimension.CONTEXT, context)
                .with(MeshDimension.TENSOR, tensor);
    }

    private static TrainingPlan plan(RankLayout layout, BatchShape shape, TrainingRecipe recipe) {
        return new TrainingPlan(
                TrainingPlan.Start.of(Esm2Size.TINY, TrainingPlan.ModelForm.NVIDIA),
                new TrainingData.Proteins(FastaSource.shipped()),
                shape,
                PackingOrder.AS_GIVEN,
                recipe,
                Recomputation.ACTIVATION,
                ActivationOffload.none(),
                layout,
                ModelSetup.Enqueuing.STANDARD,
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

    private static List<Step> steps(ModelTraining training, TrainingPlan plan) {
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

    private static List<Step> ofOneRank(OneRank one) {
        TrainingPlan plan = plan(RankLayout.of(mesh(1, 1, 1, 1, 1)), one.shape, one.recipe);
        try (Device device = Device.open()) {
            return steps(ModelTraining.of(device, plan.setup(one.config)), plan);
        }
    }

    /** Asserts that ranks take the steps of one: losses to 1e-5 and norms to 1e-4 in FP32. */
    static void assertSame(Esm2Config config, RankLayout layout, BatchShape shape, TrainingRecipe recipe) {
        DevicesNeeded.assume(layout.count());
        TrainingPlan plan = plan(layout, shape, recipe);
        List<Step> expected = OF_ONE_RANK.computeIfAbsent(new OneRank(config, shape, recipe), RankedSteps::ofOneRank);
        List<List<Step>> ranks =
                Ranks.local(plan.ranks()).run(rank -> steps(ModelTraining.of(rank, plan.setup(config)), plan));
        boolean exact = recipe == TrainingRecipe.FP32 && !CUDA;
        double lossTolerance = exact ? 1e-5 : 1e-2;
        double normTolerance = exact ? 1e-4 : 5e-2;
        for (int i = 0; i < STEPS; i++) {
            Step one = expected.get(i);
            double[] losses = new double[layout.tensorRanks()]; // Ranks that split layers have the same.
            for (int rank = 0; rank < ranks.size(); rank++) {
                Step step = ranks.get(rank).get(i);
                losses[rank % losses.length] += step.loss;
                assertEquals(one.norm, step.norm, normTolerance * one.norm, "norm of step " + (i + 1));
            }
            for (double loss : losses) {
                assertEquals(one.loss, loss, lossTolerance * one.loss, "loss of step " + (i + 1));
            }
        }
    }
}
