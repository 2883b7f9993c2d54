package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.bindings.Provider;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Decoders that are saved, are opened as they were; and, where a Python with transformers is given, by that, too. */
@Tag("L0")
@Tag("L1")
class SavedDecoderTest {
    /** Both compute in FP32, but for the operands of products on a GPU. */
    private static final double SAME = Provider.current() == Provider.CUDA ? HuggingFaceDecoderTest.TOLERANCE : 1e-5;

    @TempDir
    private Path folder;

    /** In and out again each tensor has the same name and bytes, in one file or in several. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#decoders")
    void keepsTheBytesOfEachTensor(StoredModel stored) throws IOException {
        Path tokenizer = Files.createDirectory(folder.resolve("tokenizer"));
        Files.writeString(tokenizer.resolve("tokenizer.json"), "{\"version\": \"1.0\"}");
        Files.writeString(tokenizer.resolve("notes.txt"), "not copied");
        Path first = folder.resolve("first");
        Path second = folder.resolve("second");
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, stored.folder(), DType.FLOAT32)) {
            DecoderCheckpoint.save(model, first, SaveConfig.standard().withTokenizerFrom(tokenizer));
        }
        assertEquals(DType.FLOAT32, DecoderCheckpoint.dtype(first));
        assertEquals(DecoderCheckpoint.config(stored.folder()), DecoderCheckpoint.config(first));
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, first, DType.FLOAT32)) {
            DecoderCheckpoint.save(model, second, SaveConfig.standard().withShardBytes(4000));
        }
        Map<String, byte[]> expected = SavedEsm2Test.bytes(stored.copyTo(folder.resolve("stored")));
        for (Path saved : List.of(first, second)) {
            Map<String, byte[]> written = SavedEsm2Test.bytes(saved);
            assertEquals(expected.keySet(), written.keySet());
            expected.forEach((name, own) -> assertArrayEquals(own, written.get(name), name));
        }
        assertArrayEquals(
                Files.readAllBytes(first.resolve("config.json")), Files.readAllBytes(second.resolve("config.json")));
        try (Stream<Path> files = Files.list(first)) {
            assertEquals(
                    List.of("config.json", "model.safetensors", "tokenizer.json"),
                    files.map(file -> file.getFileName().toString()).sorted().toList());
        }
    }

    @Test
    void refusesWhatItCannotSave() {
        DecoderConfig config = new DecoderConfig(
                new DecoderSizes(10, 1, 16, 1, 1, 16, 16, 8), DecoderForm.of(DecoderArchitecture.LLAMA, 16));
        RotaryConfig half = RotaryConfig.of(16).withRotatedDim(8);
        try (Device device = Device.open();
                Decoder model = new Decoder(device, config, DType.FLOAT32, 1);
                Decoder other =
                        new Decoder(device, config.withForm(config.form().withRotary(half)), DType.FLOAT32, 1)) {
            Path target = folder.resolve("x");
            String text = assertThrows(
                            IllegalArgumentException.class,
                            () -> DecoderCheckpoint.save(other, target, SaveConfig.standard()))
                    .getMessage();
            assertTrue(
                    text.startsWith("model: expected a rotation of whole heads by halves, by base, linear factor or"
                            + " Llama 3's scaling, which LlamaForCausalLM has, got RotaryConfig["),
                    text);
            assertEquals(
                    "config: expected no folder of unused tensors, for a decoder computes with all, got " + folder,
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> DecoderCheckpoint.save(
                                            model, target, SaveConfig.standard().withUnusedFrom(folder)))
                            .getMessage());
            Path none = folder.resolve("none");
            assertEquals(
                    none + ": expected a folder with files of a tokenizer, got none",
                    assertThrows(
                                    CheckpointException.class,
                                    () -> DecoderCheckpoint.save(
                                            model, target, SaveConfig.standard().withTokenizerFrom(none)))
                            .getMessage());
            assertTrue(Files.notExists(target));
            String unlike = assertThrows(
                            IllegalArgumentException.class,
                            () -> DecoderCheckpoint.load(model, new StoredModel("decoders/llama").folder()))
                    .getMessage();
            assertTrue(unlike.startsWith("model: expected sizes and form of "), unlike);
        }
    }

    /** {@code -Dchagres.test.transformers=PYTHON}, such as a virtual environment's. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#decoders")
    @Tag("transformers")
    void transformersOpensWhatIsSaved(StoredModel stored) throws IOException, InterruptedException {
        Path saved = folder.resolve("saved");
        float[] expected;
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, stored.folder(), DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            DecoderCheckpoint.save(model, saved, SaveConfig.standard().withShardBytes(4000));
            HuggingFaceDecoderTest.begin(stored, pass);
            expected = HuggingFaceDecoderTest.used(
                    model, model.logits(HuggingFaceDecoderTest.ids(stored, pass), pass), device);
        }
        HuggingFaceEsm2Test.assertClose("logits", logits(saved, stored, folder), expected, SAME);
    }

    /** Returns the logits of transformers for a saved folder and the stored vectors' input. */
    static float[] logits(Path saved, StoredModel stored, Path folder) throws IOException, InterruptedException {
        Path output = folder.resolve("logits.safetensors");
        TransformersPython.run(
                folder, "logits_of_saved_decoder.py", saved, stored.folder().resolve("vectors.safetensors"), output);
        return HuggingFaceEsm2Test.vector(StoredModel.floats(output), "logits");
    }
}
