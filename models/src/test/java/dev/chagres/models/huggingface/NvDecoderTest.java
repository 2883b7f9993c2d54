package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.Provider;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.huggingface.Target.Groups;
import dev.chagres.models.huggingface.Target.Padding;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.pass.Pass;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** NVLlama and NVQwen3: folders that src/test/vectors/make_nv_decoders.py has written, and logits of the same weights in transformers. */
@Tag("L0")
@Tag("L1")
class NvDecoderTest {
    /** Products on CUDA run as TF32. */
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 5e-3 : 1e-5;

    @TempDir
    private Path parent;

    private static void compareLogits(StoredModel stored, Decoder model, Device device) {
        try (Pass pass = Pass.evaluation(device)) {
            HuggingFaceDecoderTest.begin(stored, pass);
            float[] logits = HuggingFaceDecoderTest.used(
                    model, model.logits(HuggingFaceDecoderTest.ids(stored, pass), pass), device);
            HuggingFaceEsm2Test.assertClose(
                    "logits", HuggingFaceEsm2Test.vector(stored.vectors(), "logits"), logits, TOLERANCE);
        }
    }

    /** In, out, in the layout of transformers, and back: the same logits each time, and the same bytes in the end. */
    @ParameterizedTest
    @ValueSource(strings = {"llama", "qwen3"})
    void opensSavesAndConverts(String name) throws IOException {
        StoredModel stored = new StoredModel("nv-decoders/" + name);
        Path same = parent.resolve("same");
        Path plain = parent.resolve("plain");
        Path back = parent.resolve("back");
        SaveConfig nvidia = SaveConfig.standard().withLayout(DecoderLayout.NVIDIA);
        try (Device device = Device.open();
                TrainedModel opened = Models.open(device, stored.folder(), DType.FLOAT32)) {
            Decoder model = assertInstanceOf(Decoder.class, opened);
            compareLogits(stored, model, device);
            DecoderCheckpoint.save(model, same, nvidia);
            DecoderCheckpoint.save(model, plain, SaveConfig.standard());
        }
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, plain, DType.FLOAT32)) {
            compareLogits(stored, model, device);
            DecoderCheckpoint.save(model, back, nvidia);
        }
        Map<String, byte[]> expected = SavedEsm2Test.bytes(stored.copyTo(parent.resolve("copy")));
        for (Path folder : List.of(same, back)) {
            Map<String, byte[]> actual = SavedEsm2Test.bytes(folder);
            assertEquals(expected.keySet(), actual.keySet());
            expected.forEach((tensor, bytes) -> assertArrayEquals(bytes, actual.get(tensor), tensor));
            assertEquals(DecoderCheckpoint.config(stored.folder()), DecoderCheckpoint.config(folder));
        }
        assertTrue(SavedEsm2Test.bytes(plain).containsKey("model.layers.1.self_attn.k_proj.weight"));
    }

    /** What transformers computes with the converted folder. */
    @Tag("transformers")
    @ParameterizedTest
    @ValueSource(strings = {"llama", "qwen3"})
    void opensInTransformers(String name) throws IOException, InterruptedException {
        StoredModel stored = new StoredModel("nv-decoders/" + name);
        Path plain = parent.resolve("plain");
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, stored.folder(), DType.FLOAT32)) {
            DecoderCheckpoint.save(model, plain, SaveConfig.standard());
        }
        HuggingFaceEsm2Test.assertClose(
                "logits",
                HuggingFaceEsm2Test.vector(stored.vectors(), "logits"),
                SavedDecoderTest.logits(plain, stored, parent),
                1e-5);
    }

    /** Heads of one column: five groups of three queries, a key and a value each. */
    @Test
    void headsLieByGroups() {
        Part part = new Part("weight", 25);
        Target target = new Target("qkv", List.of(part), Padding.NONE, new Groups(5, 3));
        long[] there = new long[25];
        for (int i = 0; i < 25; i++) {
            there[i] = target.run(part, i).first();
            assertEquals(1, target.run(part, i).count());
            assertEquals(i, target.back(part, there[i]).first());
        }
        assertArrayEquals(new long[] {0, 1, 2, 5, 6, 7}, Arrays.copyOf(there, 6), "queries");
        assertArrayEquals(new long[] {3, 8, 13, 18, 23}, Arrays.copyOfRange(there, 15, 20), "keys");
        assertArrayEquals(new long[] {4, 9, 14, 19, 24}, Arrays.copyOfRange(there, 20, 25), "values");
    }

    private String refusal(String name, String field, @Nullable Object value) throws IOException {
        StoredModel stored = new StoredModel("nv-decoders/" + name);
        Path folder = parent.resolve("refused");
        Files.createDirectories(folder);
        Map<String, @Nullable Object> fields = new LinkedHashMap<>(
                JsonObject.read(stored.folder().resolve("config.json")).fields());
        fields.put(field, value);
        JsonText.write(folder.resolve("config.json"), fields);
        CheckpointException refusal = assertThrows(CheckpointException.class, () -> DecoderCheckpoint.config(folder));
        return String.valueOf(refusal.getMessage()).substring(folder.toString().length() + 1);
    }

    @Test
    void refusesWhatItsLayersDoNotHave() throws IOException {
        String at = "config.json: field ";
        assertEquals(
                at + "attention_bias: expected false: NVLlamaForCausalLM has no biases, got true",
                refusal("llama", "attention_bias", true));
        assertEquals(
                at + "head_dim: expected hidden_size / num_attention_heads, which NVLlamaForCausalLM has, got 16",
                refusal("llama", "head_dim", 16));
        assertEquals(
                at + "layer_types: expected no window, for NVQwen3ForCausalLM has others than transformers, got"
                        + " [full_attention, sliding_attention]",
                refusal("qwen3", "layer_types", List.of("full_attention", "sliding_attention")));
        assertEquals(
                at + "self_attn_mask_type: expected padding_causal or causal, got no_mask",
                refusal("qwen3", "self_attn_mask_type", "no_mask"));
        assertEquals(
                at + "use_moe: expected false: experts are not supported, got true", refusal("llama", "use_moe", true));
        assertEquals(
                at + "moe_top_k: expected no such field in NVLlamaForCausalLM, or none that is supported, got 2",
                refusal("llama", "moe_top_k", 2));
        assertTrue(refusal("llama", "architectures", List.of("NVMistralForCausalLM"))
                .contains("expected one of [LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, MistralForCausalLM,"
                        + " NVLlamaForCausalLM, NVQwen3ForCausalLM]"));
    }

    @Test
    void refusesToSaveWhatItDoesNotHave() {
        StoredModel biased = new StoredModel("decoders/qwen3-biases");
        try (Device device = Device.open();
                Decoder model = DecoderCheckpoint.open(device, biased.folder(), DType.FLOAT32)) {
            String text = assertThrows(
                            IllegalArgumentException.class,
                            () -> DecoderCheckpoint.save(
                                    model,
                                    parent.resolve("x"),
                                    SaveConfig.standard().withLayout(DecoderLayout.NVIDIA)))
                    .getMessage();
            assertTrue(
                    text.startsWith(
                            "model: expected Llama, with heads of hidden / heads columns, or Qwen 3, without biases"),
                    text);
        }
        assertThrows(
                CheckpointException.class,
                () -> PeftAdapters.config(
                        new StoredModel("nv-decoders/qwen3").folder(),
                        PeftDecodersTest.Stored.QWEN3_QUERY_VALUE.folder()));
    }
}
