package dev.chagres.models.huggingface;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.models.decoder.DecoderConfig;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Fields of a decoder's configuration: what is taken, and the text of what is refused. */
@Tag("L0")
class DecoderRefusalsTest {
    @TempDir
    private Path parent;

    private int folders;

    private Path folder(String stored, Map<String, ? extends @Nullable Object> changes) throws IOException {
        Path folder = new StoredModel("decoders/" + stored).copyTo(parent.resolve(stored + folders++));
        Path file = folder.resolve("config.json");
        Map<String, @Nullable Object> fields =
                new LinkedHashMap<>(JsonObject.read(file).fields());
        fields.putAll(changes);
        JsonText.write(file, fields);
        return folder;
    }

    private void assertRefused(String stored, String field, Object value, String text) throws IOException {
        Path folder = folder(stored, Map.of(field, value));
        assertEquals(
                folder.resolve("config.json") + ": field " + text,
                assertThrows(CheckpointException.class, () -> DecoderCheckpoint.config(folder))
                        .getMessage());
    }

    @Test
    void whatIsRefused() throws IOException {
        assertRefused("llama", "hidden_act", "gelu", "hidden_act: expected silu, got gelu");
        assertRefused(
                "llama", "attention_dropout", 1, "attention_dropout: expected 0: dropout is not supported here, got 1");
        assertRefused(
                "llama", "model_type", "qwen2", "model_type: expected llama, that of LlamaForCausalLM, got qwen2");
        assertRefused(
                "llama",
                "num_key_value_heads",
                3,
                "num_key_value_heads: expected a divisor of num_attention_heads, 2, got 3");
        assertRefused("llama", "sliding_window", 4, "sliding_window: expected none: Llama has no windows, got 4");
        assertRefused(
                "mistral",
                "attention_bias",
                true,
                "attention_bias: expected none: MistralForCausalLM does not look at it, got true");
        assertRefused(
                "qwen2",
                "layer_types",
                List.of("full_attention", "linear_attention"),
                "layer_types: expected full_attention or sliding_attention each, got [full_attention, linear_attention]");
        assertRefused(
                "llama",
                "residual_multiplier",
                2,
                "residual_multiplier: expected no such field in LlamaForCausalLM, or none that is supported, got 2");
        assertRefused(
                "llama",
                "rope_parameters",
                Map.of("rope_type", "yarn", "factor", 4),
                "rope_parameters.rope_type: expected default, linear or llama3, got yarn");
        assertRefused(
                "llama",
                "rope_parameters",
                Map.of("rope_type", "linear"),
                "rope_parameters.factor: expected a number above 0, got none");
        assertRefused(
                "llama",
                "rope_parameters",
                Map.of("rope_type", "linear", "factor", 2, "beta_fast", 3),
                "rope_parameters.beta_fast: expected none with this rope_type, which takes [factor, rope_theta], got 3");
    }

    /** Rotation as transformers 4 wrote it, several ends, and fields without effect. */
    @Test
    void whatIsTaken() throws IOException {
        Map<String, @Nullable Object> old = new LinkedHashMap<>();
        old.put("rope_parameters", null);
        old.put("rope_theta", 500_000);
        Map<String, Object> scaling = new LinkedHashMap<>();
        scaling.put("type", "llama3");
        scaling.put("factor", 8);
        scaling.put("low_freq_factor", 1);
        scaling.put("high_freq_factor", 4);
        old.put("rope_scaling", scaling);
        old.put("eos_token_id", Arrays.asList(2, 3, 700));
        old.put("pad_token_id", -1);
        old.put("num_key_value_heads", null);
        old.put("temperature", 0.6);
        // Without key heads of their own there are as many as heads, which these tensors have not.
        Path folder = folder("llama", old);
        String text = assertThrows(CheckpointException.class, () -> DecoderCheckpoint.config(folder))
                .getMessage();
        assertEquals(
                folder.resolve("model.safetensors")
                        + ": tensor model.layers.0.self_attn.k_proj.weight: expected F32, F16 or BF16 [32, 16], as config.json"
                        + " says, got F32 [16, 16]",
                text);
        old.put("num_key_value_heads", 1);
        DecoderConfig config = DecoderCheckpoint.config(folder("llama", old));
        assertEquals(
                RotaryConfig.of(16).withBase(500_000).withScaling(new Llama3Scaling(8, 1, 4, 128)),
                config.form().rotary());
        assertEquals(List.of(2, 3), config.tokens().ends());
        assertEquals(Optional.of(1), config.tokens().begin());
        assertEquals(Optional.empty(), config.tokens().padding());
    }
}
