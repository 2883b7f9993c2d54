package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.Sequences;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.checkpoint.RunState;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
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
import java.util.function.Supplier;
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
        /** Tokens of each sequence; 0: 2 to 63. */
        private final int each;

        private int length;
        private int first;
        private int prompt;

        Chains() {
            this(0);
        }

        Chains(int each) {
            this.each = each;
        }

        @Override
        public boolean advance() {
            length = each == 0 ? 2 + random.nextInt(62) : each;
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
        return train(trainer, Chains::new, steps);
    }

    private static double[] train(Trainer trainer, Supplier<TokenSequences> data, int steps)
            throws InterruptedException {
        List<Double> losses = new ArrayList<>();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss()))).train(data, steps);
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @ParameterizedTest
    @EnumSource
    void everyKindOfRanksTakesTheStepsOfOne(DecoderArchitecture architecture) throws InterruptedException {
        DevicesNeeded.assume(2);
        DecoderConfig config = config(architecture);
        double[] expected = train(trainer(config), 5);
        assertTrue(expected[4] < expected[0] - 0.1, () -> "losses: expected to fall, got " + Arrays.toString(expected));
        for (MeshDimension dimension : MeshDimension.values()) {
            // Tied and separate heads both ways.
            int lossTokens = architecture.ordinal() % 2 * 48;
            Trainer ranked = trainer(config.withLossTokens(lossTokens))
                    .withMesh(MeshShape.ofOne().with(dimension, 2));
            FullyShardedConfig three = FullyShardedConfig.of(ZeroStage.THREE);
            assertArrayEquals(expected, train(ranked, 5), 1e-4, dimension.toString());
            if (dimension == MeshDimension.SHARD) {
                assertArrayEquals(expected, train(ranked.withSharding(three), 5), 1e-4, "sharded");
            }
        }
    }

    /** Packed sequences of one length, whose attention is dense, train as padded rows do, captured and on two ranks. */
    @Test
    void fullSequencesTakeTheStepsOfPaddedOnes() throws InterruptedException {
        DecoderConfig config = config(DecoderArchitecture.QWEN3).withContext(128);
        Supplier<TokenSequences> full = () -> new Chains(128);
        Trainer padded = Trainer.of(config, new BatchShape(BatchLayout.PADDED, 512, 128, 2))
                .withSeed(7)
                .withSchedule(SCHEDULE);
        double[] expected = train(padded, full, 3);
        Trainer packed = Trainer.of(config, new BatchShape(BatchLayout.PACKED, 512, 128, 2))
                .withSeed(7)
                .withSchedule(SCHEDULE);
        assertArrayEquals(expected, train(packed, full, 3), 1e-5);
        assertArrayEquals(expected, train(packed.withCapturedSteps(), full, 3), 1e-5);
        for (MeshDimension dimension : List.of(MeshDimension.TENSOR, MeshDimension.CONTEXT, MeshDimension.PIPELINE)) {
            if (Device.count() >= 2) {
                Trainer ranked = packed.withMesh(MeshShape.ofOne().with(dimension, 2));
                assertArrayEquals(expected, train(ranked, full, 3), 1e-4, dimension.toString());
            }
        }
    }

    /** Adapters of a folder's decoder, of ranks of their own; merged, the model computes the loss that they had. */
    @Test
    void adaptersTrainOnEveryKindOfRanks(@TempDir Path folder) throws InterruptedException {
        DevicesNeeded.assume(2);
        DecoderConfig config = config(DecoderArchitecture.QWEN3);
        Path base = folder.resolve("base");
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.FLOAT32, 11)) {
            DecoderCheckpoint.save(model, base, SaveConfig.standard());
        }
        LoraConfig lora = LoraConfig.of(4, "query", "value", "gate", "up", "fc2")
                .withAlpha(16)
                .withOwn("value", 2, 6);
        Trainer trainer = Trainer.of(config.adapted(lora), SHAPE)
                .withSeed(7)
                .withSchedule(new LearningRateSchedule(3e-2f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f))
                .withStart(weights -> DecoderCheckpoint.begin(weights, base));
        double[] expected = train(trainer, 5);
        assertTrue(expected[3] < expected[0] - 0.1, () -> "losses: expected to fall, got " + Arrays.toString(expected));
        for (MeshDimension dimension : MeshDimension.values()) {
            Trainer ranked = trainer.withMesh(MeshShape.ofOne().with(dimension, 2));
            assertArrayEquals(expected, train(ranked, 5), 1e-4, dimension.toString());
            if (dimension == MeshDimension.SHARD) {
                Trainer sharded = ranked.withSharding(FullyShardedConfig.of(ZeroStage.THREE));
                assertArrayEquals(expected, train(sharded, 5), 1e-4, "sharded");
            }
        }
        Path state = folder.resolve("state");
        trainer.withMesh(MeshShape.ofOne().with(MeshDimension.TENSOR, 2))
                .withSave(state, 0)
                .train(Chains::new, 5);
        Path adapters = folder.resolve("adapters");
        // @start region="adapters"
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        try (Device device = Device.open();
                Decoder model = new Decoder(
                        device, config, plan, declared -> Parameters.allocate(device, declared, DType.FLOAT32, 0))) {
            RunState.of(model.parameters()).load(state);
            PeftAdapters.save(model, lora, base, adapters); // PEFT opens it
        }
        // @end
        LoraConfig again = PeftAdapters.config(base, adapters).of("layers.1.attention.qkv.linear.value");
        assertEquals(2, again.rank());
        assertEquals(6, again.alpha());
        try (Device device = Device.open();
                Decoder adapted = PeftAdapters.openDecoder(device, base, adapters, DType.FLOAT32);
                Decoder merged = PeftAdapters.openMergedDecoder(device, base, adapters, DType.FLOAT32)) {
            float[] logits = logits(adapted, device);
            assertArrayEquals(logits, logits(merged, device), 1e-4f);
            try (Decoder plain = DecoderCheckpoint.open(device, base, DType.FLOAT32)) {
                assertFalse(Arrays.equals(logits, logits(plain, device)), "adapters have learned");
            }
        }
    }

    private static float[] logits(Decoder model, Device device) {
        try (Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 5));
            Tensor ids = pass.scope().tensor(DType.INT32, 5);
            ids.set(device.stream(), new int[] {3, 10, 31, 94, 83});
            return model.logits(ids, pass).toFloats(device.stream());
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
        for (Recomputation recomputation : Recomputation.values()) {
            assertArrayEquals(expected, train(trainer(config.withRecomputation(recomputation)), 5));
        }
        double[] divided = train(trainer(config.withLossTokens(32)), 5);
        assertArrayEquals(new double[] {expected[0]}, new double[] {divided[0]});
        assertArrayEquals(expected, divided, 1e-5);
    }

    /** A resumed run draws the masks that the whole one drew, in captured steps and in stages of a pipeline, too. */
    @Test
    void dropoutGoesOnWithTheSameMasks(@TempDir Path folder) throws InterruptedException {
        LoraConfig lora = LoraConfig.of(4, "query", "value", "fc2").withAlpha(8).withDropout(0.5f);
        Trainer plain = Trainer.of(config(DecoderArchitecture.LLAMA).adapted(lora), SHAPE)
                .withSeed(7)
                .withSchedule(new LearningRateSchedule(3e-2f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f));
        Trainer captured = plain.withCapturedSteps();
        List<Trainer> trainers = new ArrayList<>(List.of(plain, captured));
        if (Device.count() >= 2) {
            trainers.add(plain.withMesh(MeshShape.ofOne().with(MeshDimension.PIPELINE, 2)));
            trainers.add(plain.withMesh(MeshShape.ofOne().with(MeshDimension.TENSOR, 2)));
        }
        for (Trainer trainer : trainers) {
            Path state = folder.resolve("state" + trainers.indexOf(trainer));
            double[] whole = train(trainer, 6);
            if (trainer == captured) {
                assertArrayEquals(train(plain, 6), whole, 1e-4, "the masks of a run that is not captured");
            }
            trainer.withSave(state, 0).train(Chains::new, 3);
            double[] rest = train(trainer.withResume(state), 6);
            assertArrayEquals(
                    new double[] {whole[3], whole[4], whole[5]}, rest, "trainer " + trainers.indexOf(trainer));
        }
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
