package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** What is saved, is opened as it was; and, where a Python with transformers is given, by that, too. */
@Tag("L0")
@Tag("L1")
class SavedEsm2Test {
    @TempDir
    private Path folder;

    static Map<String, byte[]> bytes(Path of) throws IOException {
        Map<String, byte[]> all = new TreeMap<>();
        try (Stream<Path> files = Files.list(of)) {
            for (Path file : files.filter(each -> each.toString().endsWith(".safetensors"))
                    .toList()) {
                try (SafetensorsFile opened = SafetensorsFile.open(file)) {
                    assertEquals(Map.of("format", "pt"), opened.metadata());
                    opened.entries()
                            .forEach(
                                    (name, entry) -> all.put(name, entry.bytes().toArray(ValueLayout.JAVA_BYTE)));
                }
            }
        }
        return all;
    }

    /** In and out again each tensor has the same bytes, but for names and the number of frequencies; and then also the same names. */
    @ParameterizedTest
    @MethodSource("dev.chagres.models.huggingface.StoredModel#all")
    void keepsTheBytesOfEachTensor(StoredModel stored) throws IOException {
        Path copy = stored.copyTo(folder.resolve("stored"));
        SaveConfig saving = SaveConfig.standard().withUnusedFrom(copy);
        Path first = folder.resolve("first");
        Path second = folder.resolve("second");
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, copy, DType.FLOAT32)) {
            Esm2Checkpoint.save(model, first, saving);
        }
        assertEquals(DType.FLOAT32, Esm2Checkpoint.dtype(first));
        assertEquals(Esm2Checkpoint.config(copy), Esm2Checkpoint.config(first));
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, first, DType.FLOAT32)) {
            Esm2Checkpoint.save(model, second, saving);
        }
        Map<String, byte[]> left = bytes(copy);
        Map<String, byte[]> written = bytes(first);
        Map<String, byte[]> again = bytes(second);
        assertEquals(written.keySet(), again.keySet());
        written.forEach((name, own) -> assertArrayEquals(own, again.get(name), name));
        byte[] frequencies = left.remove("esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq");
        written.forEach((name, own) -> {
            String theirs =
                    name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
            assertArrayEquals(name.endsWith("inv_freq") ? frequencies : left.remove(theirs), own, name);
        });
        assertEquals(Map.of(), left);
        for (String file : List.of("config.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")) {
            assertArrayEquals(Files.readAllBytes(first.resolve(file)), Files.readAllBytes(second.resolve(file)), file);
        }
    }

    @Test
    void dividesTensorsAmongFiles() throws IOException {
        StoredModel stored = new StoredModel("token-dropout");
        Path whole = folder.resolve("whole");
        Path shards = folder.resolve("shards");
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, stored.folder(), DType.BFLOAT16)) {
            Esm2Checkpoint.save(model, whole, SaveConfig.standard());
            Esm2Checkpoint.save(model, shards, SaveConfig.standard().withShardBytes(6000));
        }
        try (Stream<Path> files = Files.list(shards)) {
            assertTrue(files.filter(file -> file.toString().endsWith(".safetensors"))
                            .count()
                    > 8);
        }
        Map<String, byte[]> expected = bytes(whole);
        Map<String, byte[]> actual = bytes(shards);
        assertEquals(expected.keySet(), actual.keySet());
        expected.forEach((name, own) -> assertArrayEquals(own, actual.get(name), name));
        assertEquals(DType.BFLOAT16, Esm2Checkpoint.dtype(shards));
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, shards, DType.BFLOAT16)) {
            assertEquals(Esm2Checkpoint.config(stored.folder()), model.config());
            Path again = folder.resolve("again");
            Esm2Checkpoint.save(model, again, SaveConfig.standard());
            bytes(again).forEach((name, own) -> assertArrayEquals(expected.get(name), own, name));
        }
    }

    /** A model that a trainer has made takes the weights of a folder. */
    @Test
    void loadsIntoAModel() {
        StoredModel stored = new StoredModel("plain");
        Esm2Config config = Esm2Checkpoint.config(stored.folder()).withContext(64);
        try (Device device = Device.open();
                Esm2 model = new Esm2(device, config, DType.FLOAT32, 5);
                Esm2 other = new Esm2(device, config.withInner(64), DType.FLOAT32, 5)) {
            Esm2Checkpoint.load(model, stored.folder());
            float[] loaded = model.parameters().get("head.dense.bias").weight().toFloats(device.stream());
            float[] expected = StoredModel.floats(stored.folder().resolve("model.safetensors"))
                    .get("lm_head.dense.bias");
            assertArrayEquals(expected, loaded);
            String text = assertThrows(
                            IllegalArgumentException.class, () -> Esm2Checkpoint.load(other, stored.folder()))
                    .getMessage();
            assertTrue(text.startsWith("model: expected sizes and form of "), text);
        }
    }

    @Test
    void refusesWhatItCannotSave() throws IOException {
        Path full = Files.createDirectory(folder.resolve("full"));
        Files.writeString(full.resolve("a"), "");
        Esm2Config small = new Esm2Config(1, 16, 1, 8);
        try (Device device = Device.open();
                Esm2 nvidia = new Esm2(device, small, DType.FLOAT32, 1);
                Esm2 model = new Esm2(device, small.withForm(Esm2Form.published()), DType.FLOAT32, 1)) {
            assertEquals(
                    "model: expected the exact GELU, which EsmForMaskedLM computes, got TANH; train with Esm2Form.published()",
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> Esm2Checkpoint.save(nvidia, folder.resolve("x"), SaveConfig.standard()))
                            .getMessage());
            assertEquals(
                    full + ": expected a new or empty folder, got one with files",
                    assertThrows(
                                    CheckpointException.class,
                                    () -> Esm2Checkpoint.save(model, full, SaveConfig.standard()))
                            .getMessage());
            assertThrows(
                    CheckpointException.class,
                    () -> Esm2Checkpoint.save(model, folder.resolve("none/x"), SaveConfig.standard()));
            Esm2Checkpoint.save(model, Files.createDirectory(folder.resolve("empty")), SaveConfig.standard());
        }
        try (Stream<Path> left = Files.list(folder)) {
            assertEquals(2, left.count(), "no folder is left behind");
        }
    }
}
