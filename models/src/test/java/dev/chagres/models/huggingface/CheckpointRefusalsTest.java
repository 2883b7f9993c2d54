package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form.Masks;
import dev.chagres.models.huggingface.MutatedFolder.Copy;
import dev.chagres.parameter.Parameter;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The texts of what is refused. */
@Tag("L0")
class CheckpointRefusalsTest {
    private static final StoredModel STORED = new StoredModel("token-dropout");

    @TempDir
    private Path parent;

    private Path folder = Path.of("");

    @BeforeEach
    void copy() {
        folder = STORED.copyTo(parent.resolve("model"));
    }

    private void field(String name, @Nullable Object value) throws IOException {
        Map<String, @Nullable Object> fields = new LinkedHashMap<>(
                JsonObject.read(STORED.folder().resolve("config.json")).fields());
        fields.put(name, value);
        JsonText.write(folder.resolve("config.json"), fields);
    }

    private void refusedField(String name, @Nullable Object value, String text) throws IOException {
        field(name, value);
        CheckpointException refusal = assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(folder));
        assertEquals(folder.resolve("config.json") + ": field " + name + ": " + text, refusal.getMessage());
        assertEquals(name, refusal.part().orElseThrow());
        assertEquals(folder.resolve("config.json"), refusal.file());
    }

    @Test
    void fieldsThatSaySomethingElse() throws IOException {
        refusedField(
                "architectures",
                List.of("EsmFold"),
                "expected one of [EsmForMaskedLM, NVEsmForMaskedLM, EsmModel, EsmForTokenClassification,"
                        + " EsmForSequenceClassification], got [EsmFold]");
        refusedField("model_type", "bert", "expected esm, got bert");
        refusedField("vocab_size", 64, "expected 33, got 64");
        refusedField("vocab_size", null, "expected 33, got none");
        refusedField("mask_token_id", 4, "expected 32, got 4");
        refusedField("mask_token_id", null, "expected 32, which token_dropout needs, got none");
        refusedField("pad_token_id", 0, "expected 1, got 0");
        refusedField("hidden_size", "a", "expected an integer from 1 to 16777216, got a");
        refusedField("num_attention_heads", 5, "expected a divisor of hidden_size, 32, got 5");
        refusedField("hidden_act", "relu", "expected gelu, got relu");
        refusedField(
                "hidden_dropout_prob",
                0.1,
                "expected 0, as in the published models (transformers' default is 0.1), got 0.1");
        refusedField("layer_norm_eps", 0, "expected a number above 0, got 0");
        refusedField("position_embedding_type", "absolute", "expected rotary (the default is absolute), got absolute");
        refusedField(
                "emb_layer_norm_before",
                true,
                "expected false: ESM-1b and ESM-1v have a norm there, ESM-2 has none, got true");
        refusedField("token_dropout", 1, "expected true or false, got 1");
        refusedField("is_folding_model", true, "expected false: ESMFold has parts that are not supported, got true");
        refusedField("is_decoder", true, "expected false: ESM-2 is an encoder, got true");
        refusedField("add_cross_attention", true, "expected false: ESM-2 is an encoder, got true");
        refusedField(
                "tie_word_embeddings",
                false,
                "expected true: the decoder's weight is the embedding's table, got false");
        refusedField("rope_scaling", Map.of("type", "yarn"), "expected none: it is not supported, got {type=yarn}");
        refusedField("vocab_list", List.of("A"), "expected the 33 tokens of ESM-2 or none, got [A]");
        refusedField("max_position_embeddings", 0, "expected an integer from 1 to 1048576, got 0");
    }

    @Test
    void types() throws IOException {
        assertEquals(DType.FLOAT32, Esm2Checkpoint.dtype(folder));
        field("dtype", "float64");
        assertTrue(assertThrows(CheckpointException.class, () -> Esm2Checkpoint.dtype(folder))
                .getMessage()
                .endsWith("field dtype: expected float32, float16 or bfloat16, got float64"));
        field("torch_dtype", "bfloat16");
        assertTrue(assertThrows(CheckpointException.class, () -> Esm2Checkpoint.dtype(folder))
                .getMessage()
                .endsWith("field dtype: expected that of torch_dtype, bfloat16, got float32"));
    }

    @Test
    void otherArchitectures() throws IOException {
        field("architectures", List.of("BertForMaskedLM"));
        try (Device device = Device.open()) {
            assertEquals(
                    folder.resolve("config.json")
                            + ": field architectures: expected one of [EsmForMaskedLM, NVEsmForMaskedLM, EsmModel,"
                            + " EsmForTokenClassification, EsmForSequenceClassification, LlamaForCausalLM,"
                            + " Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM, NVLlamaForCausalLM,"
                            + " NVQwen3ForCausalLM], got [BertForMaskedLM]",
                    assertThrows(CheckpointException.class, () -> Models.open(device, folder, DType.FLOAT32))
                            .getMessage());
        }
    }

    private String text() {
        return String.valueOf(assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(folder))
                .getMessage());
    }

    @Test
    void foldersWithoutTensors() throws IOException {
        Files.delete(folder.resolve("model.safetensors"));
        assertEquals(folder + ": expected model.safetensors or model.safetensors.index.json, got neither", text());
        Files.writeString(folder.resolve("pytorch_model.bin"), "");
        assertEquals(
                folder
                        + ": expected model.safetensors or model.safetensors.index.json, got neither, but"
                        + " pytorch_model.bin, which only PyTorch reads. Convert it with: python -c \"from"
                        + " transformers import AutoModelForMaskedLM as M;"
                        + " M.from_pretrained('FOLDER').save_pretrained('CONVERTED')\"",
                text());
        Files.delete(folder.resolve("config.json"));
        assertEquals(folder.resolve("config.json") + ": expected a JSON file, got none", text());
    }

    /** The folder of a run, whose checkpoints are folders of transformers. */
    @Test
    void foldersOfRuns() throws IOException {
        Path run = folder.resolveSibling("run");
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, folder, DType.FLOAT32)) {
            RunState state = RunState.of(model.parameters())
                    .with(Esm2Checkpoint.files(model.config(), DType.FLOAT32).orElseThrow());
            state.save(CheckpointFolder.of(run), 1, Map.of());
            state.save(CheckpointFolder.of(run), 3, Map.of());
        }
        assertEquals(
                run.resolve("config.json") + ": expected a JSON file, got none; the last checkpoint of this run is "
                        + run.resolve("step-00000003"),
                assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(run))
                        .getMessage());
        Esm2Checkpoint.config(run.resolve("step-00000003"));
    }

    /** A model of the Hub that is named instead of a folder. */
    @Test
    void foldersThatAreNotThere() {
        for (var hint : Map.of(
                        "no-such/folder-here",
                                ", and a model of the Hub comes by: hf download no-such/folder-here --local-dir FOLDER",
                        "no-such-folder", "",
                        "./no-such/folder", "",
                        "no such/folder", "")
                .entrySet()) {
            Path missing = Path.of(hint.getKey());
            assertEquals(
                    missing.resolve("config.json") + ": expected a JSON file, got none; there is no such folder"
                            + hint.getValue(),
                    assertThrows(CheckpointException.class, () -> Esm2Checkpoint.config(missing))
                            .getMessage());
        }
    }

    private void index(Map<String, Object> weightMap) throws IOException {
        Files.deleteIfExists(folder.resolve("model.safetensors"));
        JsonText.write(folder.resolve("model.safetensors.index.json"), Map.of("weight_map", weightMap));
    }

    private static void tensor(Path file, String... names) {
        List<TensorSource> sources = List.of(names).stream()
                .map(name -> TensorSource.of(
                        new TensorSpec(name, DType.FLOAT32, Shape.of(1)), MemorySegment.ofArray(new byte[4])))
                .toList();
        SafetensorsWriter.write(file, sources, Map.of());
    }

    @Test
    void indices() throws IOException {
        String at = folder.resolve("model.safetensors.index.json") + ": field weight_map.a: ";
        for (String outside :
                List.of("../b.safetensors", "/etc/b.safetensors", "c/b.safetensors", "b.bin", ".safetensors")) {
            index(Map.of("a", outside));
            assertEquals(at + "expected the name of a safetensors file in the same folder, got " + outside, text());
        }
        index(Map.of("a", "b.safetensors"));
        assertEquals(at + "expected a file in the same folder, got b.safetensors, which is not there", text());
        tensor(folder.resolve("b.safetensors"), "c");
        assertEquals(at + "expected this tensor in b.safetensors, got it nowhere", text());
        tensor(folder.resolve("b.safetensors"), "a", "c");
        assertEquals(
                folder.resolve("b.safetensors")
                        + ": tensor c: expected a tensor that model.safetensors.index.json names, got another one",
                text());
        tensor(folder.resolve("d.safetensors"), "c");
        index(Map.of("a", "b.safetensors", "c", "d.safetensors"));
        assertEquals(
                folder.resolve("d.safetensors") + ": tensor c: expected it in one file, got it in b.safetensors, too",
                text());
    }

    /** Fields that published files have and later ones lack, and the other way round. */
    @Test
    void fieldsThatSayTheSame() throws IOException {
        field("hidden_act", "gelu");
        field("token_dropout", null);
        Esm2Config config = Esm2Checkpoint.config(folder);
        assertEquals(Masks.EMBEDDED, config.form().masks());
        field("vocab_list", EsmVocabulary.tokens());
        assertEquals(1026, Esm2Checkpoint.config(folder).context());
        assertEquals(32, Esm2Checkpoint.config(folder).hidden());
        Files.writeString(folder.resolve("vocab.txt"), "<cls>\n<pad>\n");
        assertEquals(
                folder.resolve("vocab.txt") + ": expected the 33 tokens of ESM-2, a line each, got others", text());
    }

    /** Names of transformers 4 and of the base model saved alone, in FP16, with what the published files have besides. */
    @Test
    void otherNames() throws IOException {
        List<Copy> all = new ArrayList<>();
        for (Copy copy : MutatedFolder.copies(folder)) {
            String old = copy.name()
                    .replace("LayerNorm.gamma", "LayerNorm.weight")
                    .replace("LayerNorm.beta", "LayerNorm.bias");
            if (old.endsWith("inv_freq")) {
                all.add(copy.named(old.replace("esm.", "").replace("*", "0")));
                all.add(copy.named(old.replace("esm.", "").replace("*", "1")));
            } else {
                all.add(copy.named(old.replaceFirst("^esm\\.", "")));
            }
            if (old.endsWith("word_embeddings.weight")) {
                all.add(copy.named("lm_head.decoder.weight"));
            }
        }
        all.add(new Copy("embeddings.position_ids", DType.INT64, new long[] {1, 1026}, new byte[8 * 1026]));
        all.add(new Copy("pooler.dense.bias", DType.FLOAT32, new long[] {32}, new byte[128]));
        MutatedFolder.store(folder, CheckpointTensors.SINGLE, all);
        try (Device device = Device.open();
                Esm2 model = (Esm2) Models.open(device, folder, DType.FLOAT32);
                Esm2 usual = (Esm2) Models.open(device, STORED.folder(), DType.FLOAT32)) {
            assertEquals(usual.config(), model.config());
            for (Parameter parameter : usual.parameters().all()) {
                Tensor same = model.parameters().get(parameter.name()).weight();
                assertArrayEquals(
                        parameter.weight().toFloats(device.stream()), same.toFloats(device.stream()), parameter.name());
            }
        }
    }
}
