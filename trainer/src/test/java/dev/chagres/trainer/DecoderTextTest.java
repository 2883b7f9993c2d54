package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.io.Safetensors;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.decoder.SpecialTokens;
import dev.chagres.models.huggingface.DecoderCheckpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.models.text.TextConfig;
import dev.chagres.models.text.TextSequences;
import dev.chagres.models.text.Tokenizer;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A folder of transformers learns the completions of a file, and is saved again: on one rank, and on ranks of each kind. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class DecoderTextTest {
    private static final int STEPS = 6;
    private static final LearningRateSchedule SCHEDULE =
            new LearningRateSchedule(3e-3f, 1, STEPS, LearningRateSchedule.Decay.LINEAR, 0.1f);

    @TempDir
    private Path parent;

    private Path folder;
    private Path file;

    /** A small model with a head of its own, whose weights are no first weights, and the tokenizer of Qwen's kind. */
    @BeforeEach
    void writeFolder() throws IOException {
        folder = parent.resolve("model");
        DecoderForm form = DecoderForm.of(DecoderArchitecture.QWEN3, 16);
        DecoderConfig config = new DecoderConfig(new DecoderSizes(422, 2, 32, 4, 2, 16, 48, 128), form)
                .withTokens(new SpecialTokens(Optional.of(420), List.of(421), Optional.empty()));
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.BFLOAT16, 77)) {
            Path tokenizer = Path.of("../models/src/test/resources/tokenizers/qwen");
            DecoderCheckpoint.save(
                    model, folder, SaveConfig.standard().withShardBytes(9000).withTokenizerFrom(tokenizer));
        }
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            lines.add("{\"prompt\": \"" + i + " times the dog\", \"completion\": \" jumps over " + i + " words\"}");
        }
        file = Files.write(parent.resolve("pairs.jsonl"), lines);
    }

    private double[] train(MeshShape mesh, Optional<Path> state) throws InterruptedException {
        List<Double> losses = new ArrayList<>();
        Callback eachStep = Callback.eachStep(step -> losses.add(step.loss()));
        FullyShardedConfig three = FullyShardedConfig.of(ZeroStage.THREE);
        try (Tokenizer tokenizer = Tokenizer.open(folder)) {
            DecoderConfig config =
                    DecoderCheckpoint.config(folder).withContext(64).withLossTokens(128);
            TextConfig texts = TextConfig.of(64).withEnd(config.tokens().ends().getFirst());
            Trainer trainer = Trainer.of(config, new BatchShape(BatchLayout.PACKED, 512, 64, 4))
                    .withStart(weights -> DecoderCheckpoint.load(weights, folder))
                    .withSchedule(SCHEDULE)
                    .withMesh(mesh)
                    .withCallback(eachStep);
            trainer = mesh.size(MeshDimension.SHARD) > 1 ? trainer.withSharding(three) : trainer;
            trainer = state.isPresent() ? trainer.withSave(state.get(), 0) : trainer;
            trainer.train(() -> TextSequences.read(List.of(file), tokenizer, texts), STEPS);
        }
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @Test
    void everyKindOfRanksBeginsWithTheFolder() throws InterruptedException {
        DevicesNeeded.assume(2);
        double[] expected = train(MeshShape.ofOne(), Optional.empty());
        assertTrue(expected[STEPS - 1] < expected[0] - 0.1, () -> "losses: expected to fall, got " + List.of(expected));
        for (MeshDimension dimension : MeshDimension.values()) {
            double[] losses = train(MeshShape.ofOne().with(dimension, 2), Optional.empty());
            assertArrayEquals(expected, losses, 1e-4, dimension.toString());
        }
    }

    @Test
    void thePageShowsHowAFolderIsTrainedAndSaved() throws InterruptedException {
        Path saved = parent.resolve("saved");
        Path state = parent.resolve("state");
        // @start region="text"
        DecoderConfig config = DecoderCheckpoint.config(folder).withContext(64).withLossTokens(128);
        TextConfig texts = TextConfig.of(64).withEnd(config.tokens().ends().getFirst());
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 512, 64);
        try (Tokenizer tokenizer = Tokenizer.open(folder)) {
            Trainer.of(config, shape)
                    .withStart(weights -> DecoderCheckpoint.load(weights, folder))
                    .withSchedule(SCHEDULE)
                    .withSave(state, 0)
                    .train(() -> TextSequences.read(List.of(file), tokenizer, texts), STEPS);
        }
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.FLOAT32, 0)) {
            Safetensors.load(state, model.parameters().weightState(), device.stream());
            DecoderCheckpoint.save(model, saved, SaveConfig.standard().withTokenizerFrom(folder));
        }
        // @end
        assertEquals(config, DecoderCheckpoint.config(saved).withLossTokens(128));
        assertTrue(Files.exists(saved.resolve("tokenizer.json")));
        double[] first = train(MeshShape.ofOne(), Optional.empty());
        folder = saved;
        double[] more = train(MeshShape.ofOne(), Optional.empty());
        assertTrue(more[0] < first[0] - 0.1, more[0] + " after " + first[0]);
        assertEquals(-100, Batch.IGNORED);
    }
}
