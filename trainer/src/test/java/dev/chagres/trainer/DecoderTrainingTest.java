package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Decoders through the trainer: on ranks of each kind, in other precisions, with captured steps, and with logits of some tokens at a time. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class DecoderTrainingTest {
    private static final int VOCABULARY = 100;
    private static final DecoderSizes SIZES = new DecoderSizes(VOCABULARY, 2, 32, 4, 2, 16, 48, 64);
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 512, 64, 4);
    private static final LearningRateSchedule SCHEDULE =
            new LearningRateSchedule(3e-3f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f);

    /** Sequences in which each token follows from the one before it, but for a prompt, which has no label. */
    private static final class Chains implements TokenSequences {
        private final SplittableRandom random = new SplittableRandom(3);
        private int length;
        private int first;
        private int prompt;

        @Override
        public boolean advance() {
            length = 2 + random.nextInt(62);
            first = random.nextInt(VOCABULARY);
            prompt = random.nextInt(length - 1);
            return true;
        }

        @Override
        public int length() {
            return length;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            int token = first;
            for (int i = 0; i < count; i++) {
                int next = (token * 3 + 1) % VOCABULARY;
                ids[start + i] = token;
                labels[start + i] = i < prompt || i == count - 1 ? Batch.IGNORED : next;
                token = next;
            }
            return count - 1 - prompt;
        }
    }

    private static DecoderConfig config(DecoderArchitecture architecture) {
        DecoderForm form = DecoderForm.of(architecture, SIZES.headDim());
        return new DecoderConfig(
                SIZES,
                switch (architecture) {
                    case LLAMA ->
                        form.withRotary(RotaryConfig.of(16).withScaling(new Llama3Scaling(8, 1, 4, 32)))
                                .withHead(DecoderForm.Head.TIED);
                    case QWEN2 -> form.withHead(DecoderForm.Head.TIED).withWindows(List.of(0, 9));
                    case QWEN3 -> form;
                    case MISTRAL -> form.withWindows(List.of(17, 17));
                });
    }

    private static Trainer trainer(DecoderConfig config) {
        return Trainer.of(config, SHAPE).withSeed(7).withSchedule(SCHEDULE);
    }

    private static double[] train(Trainer trainer, int steps) throws InterruptedException {
        List<Double> losses = new ArrayList<>();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss()))).train(Chains::new, steps);
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @ParameterizedTest
    @EnumSource
    void everyKindOfRanksTakesTheStepsOfOne(DecoderArchitecture architecture) throws InterruptedException {
        Assumptions.assumeTrue(Device.count() >= 2, "skipped: fewer devices than ranks");
        DecoderConfig config = config(architecture);
        double[] expected = train(trainer(config), 5);
        assertTrue(expected[4] < expected[0] - 0.1, () -> "losses: expected to fall, got " + Arrays.toString(expected));
        for (MeshDimension dimension : MeshDimension.values()) {
            // Tied and separate heads both ways.
            int lossTokens = architecture.ordinal() % 2 * 48;
            Trainer ranked = trainer(config.withLossTokens(lossTokens))
                    .withMesh(MeshShape.ofOne().with(dimension, 2));
            FullyShardedConfig three = FullyShardedConfig.of(ZeroStage.THREE);
            double[] losses = train(dimension == MeshDimension.SHARD ? ranked.withSharding(three) : ranked, 5);
            assertArrayEquals(expected, losses, 1e-4, dimension.toString());
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"QWEN2", "QWEN3"})
    void otherPrecisionsLearnNearlyTheSame(DecoderArchitecture architecture) throws InterruptedException {
        DecoderConfig config = config(architecture).withLossTokens(100);
        double[] expected = train(trainer(config), 6);
        assertArrayEquals(expected, train(trainer(config).withCapturedSteps(), 6), 1e-4);
        Trainer half = trainer(config).withDtype(DType.BFLOAT16);
        assertArrayEquals(expected, train(half, 6), 3e-2);
        assertArrayEquals(expected, train(half.withRecipe(DelayedScaling.standard()), 6), 1e-1);
        assertArrayEquals(expected, train(half.withRecipe(Float8CurrentScaling.standard()), 6), 1e-1);
        assertArrayEquals(expected, train(half.withRecipe(Float8BlockScaling.standard()), 6), 1e-1);
        assertArrayEquals(
                expected, train(half.withRecipe(DelayedScaling.standard()).withCapturedSteps(), 6), 1e-1);
    }

    @Test
    void recomputationAndDividedLossesHaveTheSameBits() throws InterruptedException {
        DecoderConfig config = config(DecoderArchitecture.QWEN3);
        double[] expected = train(trainer(config), 5);
        for (DecoderConfig.Recomputation recomputation : DecoderConfig.Recomputation.values()) {
            assertArrayEquals(expected, train(trainer(config.withRecomputation(recomputation)), 5));
        }
        double[] divided = train(trainer(config.withLossTokens(32)), 5);
        assertArrayEquals(new double[] {expected[0]}, new double[] {divided[0]});
        assertArrayEquals(expected, divided, 1e-5);
    }

    @Test
    void aSavedRunGoesOnWithTheSameBits(@TempDir Path folder) throws InterruptedException {
        Trainer trainer = trainer(config(DecoderArchitecture.LLAMA));
        double[] whole = train(trainer, 6);
        trainer.withSave(folder.resolve("state"), 2).train(Chains::new, 4);
        double[] rest = train(trainer.withResume(folder.resolve("state")), 6);
        assertArrayEquals(new double[] {whole[4], whole[5]}, rest);
    }
}
