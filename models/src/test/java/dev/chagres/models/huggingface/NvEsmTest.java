package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.layer.GeluForm;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Folders in the layout of NVIDIA's recipes: vectors are those of src/test/vectors/make_nv_esm2.py. */
@Tag("L0")
class NvEsmTest {
    @TempDir
    private Path parent;

    private static float[] logits(Path folder, StoredModel stored) {
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, folder, DType.FLOAT32);
                Pass pass = Pass.evaluation(device)) {
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), stored.ints("lengths")));
            Tensor tokens = HuggingFaceEsm2Test.tensor(stored.ints("ids"), pass);
            return HuggingFaceEsm2Test.used(model.logits(tokens, pass), device);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"nv-padded", "nv-unpadded"})
    void logitsAreThoseOfTheScript(String name) {
        StoredModel stored = new StoredModel(name);
        float[] expected = HuggingFaceEsm2Test.vector(stored.vectors(), "logits");
        HuggingFaceEsm2Test.assertClose("logits", expected, logits(stored.folder(), stored), HuggingFaceEsm2Test.SAME);
        Esm2Config config = Esm2Checkpoint.config(stored.folder());
        assertEquals(GeluForm.TANH, config.form().gelu());
        assertEquals(GeluForm.ERF, config.form().headGelu());
    }

    /** Out and in again, and through the layout of transformers and back: the bytes of each tensor. */
    @ParameterizedTest
    @ValueSource(strings = {"nv-padded", "nv-unpadded"})
    void tensorsComeBack(String name) throws IOException {
        StoredModel stored = new StoredModel(name);
        EsmLayout layout = name.equals("nv-padded") ? EsmLayout.NV_ESM : EsmLayout.NV_ESM_UNPADDED;
        Path transformers = parent.resolve("transformers");
        Path back = parent.resolve("back");
        try (Device device = Device.open()) {
            Esm2Checkpoint.convert(device, stored.folder(), transformers, SaveConfig.standard());
            Esm2Checkpoint.convert(
                    device, transformers, back, SaveConfig.standard().withLayout(layout));
        }
        assertEquals(GeluForm.ERF, Esm2Checkpoint.config(transformers).form().gelu());
        try (SafetensorsFile before = SafetensorsFile.open(stored.folder().resolve("model.safetensors"));
                SafetensorsFile after = SafetensorsFile.open(back.resolve("model.safetensors"))) {
            assertEquals(
                    Set.copyOf(before.entries().keySet()),
                    Set.copyOf(after.entries().keySet()));
            before.entries().forEach((tensor, entry) -> {
                assertArrayEquals(entry.sizes(), after.entry(tensor).sizes(), tensor);
                assertEquals(-1, entry.bytes().mismatch(after.entry(tensor).bytes()), tensor);
            });
        }
        assertArrayEquals(logits(stored.folder(), stored), logits(back, stored));
    }

    @Test
    void saysWhatChanges() {
        Esm2Config theirs = Esm2Checkpoint.config(new StoredModel("nv-padded").folder());
        Esm2Config published = Esm2Checkpoint.config(new StoredModel("token-dropout").folder());
        assertEquals(
                List.of("its layers compute the GELU by ERF instead of TANH"),
                Esm2Checkpoint.changes(theirs, EsmLayout.TRANSFORMERS));
        assertEquals(List.of(), Esm2Checkpoint.changes(theirs, EsmLayout.NV_ESM));
        assertEquals(
                List.of(
                        "its layers compute the GELU by TANH instead of ERF",
                        "frequencies of the rotation are computed instead of those of the folder"),
                Esm2Checkpoint.changes(published, EsmLayout.NV_ESM));
    }

    @Test
    void otherFieldsAreRefused() throws IOException {
        StoredModel stored = new StoredModel("nv-padded");
        String text = Files.readString(stored.folder().resolve("config.json"));
        List<List<String>> changes = List.of(
                List.of("\"nv_esm\"", "\"esm\"", "model_type: expected nv_esm"),
                List.of("\"encoder_activation\": \"gelu\"", "\"encoder_activation\": \"silu\"", "encoder_activation: "),
                List.of("\"fuse_qkv_params\": true", "\"fuse_qkv_params\": false", "fuse_qkv_params: expected true"),
                List.of("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "model.encoder.layers.2."));
        for (int i = 0; i < changes.size(); i++) {
            Path folder = stored.copyTo(parent.resolve("changed" + i));
            List<String> change = changes.get(i);
            assertTrue(text.contains(change.getFirst()), change.toString());
            Files.writeString(folder.resolve("config.json"), text.replace(change.get(0), change.get(1)));
            CheckpointException refusal = assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(folder));
            assertTrue(String.valueOf(refusal.getMessage()).contains(change.get(2)), refusal.getMessage());
        }
    }
}
