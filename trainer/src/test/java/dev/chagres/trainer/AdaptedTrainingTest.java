package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.batch.TokenSequences;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Trainable;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** A model of which adapters are trained, or some layers: ranks, captured steps, eight bits, saved runs. */
@Tag("L0")
@Timeout(120)
class AdaptedTrainingTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 2, 64);
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 512, 64, 4);
    private static final LoraConfig LORA = LoraConfig.of(4, "query", "value", "projection", "fc1", "fc2")
            .withAlpha(8)
            .withTrained("head.norm");
    private static final Trainer TRAINER = trainer(LORA);
    private static final Trainer FROZEN = Trainer.of(
                    CONFIG.training(Trainable.only("layers.1", "norm", "head.norm")), SHAPE)
            .withSeed(7)
            .withSchedule(new LearningRateSchedule(1e-2f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f));

    private final List<Double> losses = new ArrayList<>();

    private static Trainer trainer(LoraConfig lora) {
        return Trainer.of(CONFIG.adapted(lora), SHAPE)
                .withSeed(7)
                .withSchedule(new LearningRateSchedule(1e-2f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f));
    }

    private static TokenSequences sequences() {
        return new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20));
    }

    private double[] train(Trainer trainer, int steps) throws InterruptedException {
        losses.clear();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss())))
                .train(AdaptedTrainingTest::sequences, steps);
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @ParameterizedTest
    @EnumSource
    void everyKindOfRanksTakesTheStepsOfOne(MeshDimension dimension) throws InterruptedException {
        DevicesNeeded.assume(2);
        for (Trainer trainer : List.of(TRAINER, FROZEN)) {
            double[] expected = train(trainer, 6);
            assertTrue(expected[5] < expected[0], () -> Arrays.toString(expected));
            Trainer ranked = trainer.withMesh(MeshShape.ofOne().with(dimension, 2));
            FullyShardedConfig three = FullyShardedConfig.of(ZeroStage.THREE);
            assertArrayEquals(
                    expected, train(dimension == MeshDimension.SHARD ? ranked.withSharding(three) : ranked, 6), 1e-4);
        }
    }

    @Test
    void capturedStepsAndEightBitsLearnNearlyTheSame() throws InterruptedException {
        for (Trainer trainer : List.of(TRAINER, FROZEN)) {
            double[] expected = train(trainer, 6);
            assertArrayEquals(expected, train(trainer.withCapturedSteps(), 6), 1e-4);
            assertArrayEquals(expected, train(trainer.withDtype(DType.BFLOAT16), 6), 3e-2);
            assertArrayEquals(
                    expected, train(trainer.withDtype(DType.BFLOAT16).withRecipe(DelayedScaling.standard()), 6), 6e-2);
        }
    }

    @Test
    void aSavedRunGoesOnWithTheSameBits(@TempDir Path folder) throws InterruptedException {
        for (Trainer trainer : List.of(trainer(LORA.withDropout(0.1f)), FROZEN)) {
            Path file = folder.resolve("state");
            double[] whole = train(trainer, 8);
            trainer.withSave(file, 2).train(AdaptedTrainingTest::sequences, 5);
            assertArrayEquals(new double[] {whole[5], whole[6], whole[7]}, train(trainer.withResume(file), 8));
        }
    }

    /** As {@link ModelTrainingTest#aSteadyStepMakesNoObject} of a model without adapters. */
    @Test
    void aSteadyStepMakesNoObject() {
        var shape = new BatchShape(BatchLayout.PACKED, 256, 64, 2);
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        var batches = new Batch[8];
        long least = Long.MAX_VALUE;
        long memory = 0;
        var result = new StepResult();
        try (Device device = Device.open();
                var training = ModelTraining.of(device, ModelSetup.of(CONFIG.adapted(LORA.withDropout(0.1f)), shape));
                var packer = new SequencePacker(shape, sequences())) {
            for (int i = 0; i < batches.length; i++) {
                batches[i] = new Batch(shape);
                assertTrue(packer.fill(batches[i]));
            }
            for (int round = 0; round < 10; round++) {
                long before = threads.getCurrentThreadAllocatedBytes();
                for (Batch batch : batches) {
                    training.upload(batch);
                    training.step(1e-3f);
                    training.result(result);
                }
                least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
                assertTrue(round < 2 || training.memoryBytes() == memory, "device memory still grows");
                memory = training.memoryBytes();
            }
        }
        assertEquals(0, least);
    }
}
