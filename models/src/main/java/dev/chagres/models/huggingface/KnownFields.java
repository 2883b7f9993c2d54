package dev.chagres.models.huggingface;

import dev.chagres.models.decoder.DecoderArchitecture;
import java.util.List;
import java.util.Objects;
import java.util.Set;

/**
 * Which fields a configuration of a decoder may have: those that are taken, those that change nothing, and a refusal of each other one.
 *
 * <p>Threading: immutable.
 */
record KnownFields(JsonObject json, DecoderArchitecture architecture, DecoderLayout layout) {
    /** Fields that are taken, of all architectures. */
    private static final Set<String> TAKEN = Set.of(
            "architectures",
            "model_type",
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "hidden_act",
            "max_position_embeddings",
            "rms_norm_eps",
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "tie_word_embeddings",
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "partial_rotary_factor",
            "original_max_position_embeddings",
            "attention_bias",
            "mlp_bias",
            "attention_dropout",
            "use_sliding_window",
            "sliding_window",
            "max_window_layers",
            "layer_types",
            "dtype",
            "torch_dtype");

    /** Fields that change nothing of what a decoder computes: how it is run, how it began, how text is generated, where it is from. */
    private static final Set<String> WITHOUT_EFFECT = Set.of(
            "_name_or_path",
            "_attn_implementation_autoset",
            "attn_implementation",
            "auto_map",
            "begin_suppress_tokens",
            "chunk_size_feed_forward",
            "custom_pipelines",
            "do_sample",
            "early_stopping",
            "finetuning_task",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "id2label",
            "initializer_range",
            "is_decoder",
            "is_encoder_decoder",
            "label2id",
            "length_penalty",
            "max_length",
            "min_length",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_return_sequences",
            "output_attentions",
            "output_hidden_states",
            "output_scores",
            "prefix",
            "pretraining_tp",
            "problem_type",
            "remove_invalid_values",
            "repetition_penalty",
            "return_dict",
            "return_dict_in_generate",
            "sep_token_id",
            "suppress_tokens",
            "task_specific_params",
            "temperature",
            "tokenizer_class",
            "top_k",
            "top_p",
            "torchscript",
            "transformers_version",
            "typical_p",
            "unsloth_fixed",
            "unsloth_version",
            "use_bfloat16",
            "use_cache");

    /** Further ones of NVIDIA's recipes: how layers are run and began, and what {@link #refuseOthersOfNvidia} looks at. */
    private static final Set<String> OF_NVIDIA = Set.of(
            "attn_input_format",
            "embedding_init_std",
            "fp8_first_last_bf16",
            "layer_precision",
            "num_layers_at_end_in_bf16",
            "num_layers_at_start_in_bf16",
            "self_attn_mask_type",
            "use_megatron_scaled_init",
            "use_moe",
            "use_quantized_model_init");

    /** Refuses fields that say something that no model here computes. */
    void refuseOthers() {
        if (!json.text("model_type", architecture.modelType()).equals(architecture.modelType())) {
            throw json.refused("model_type", architecture.modelType() + ", that of " + architecture.className());
        }
        String activation = json.text("hidden_act", "silu");
        if (!activation.equals("silu") && !activation.equals("swish")) {
            throw json.refused("hidden_act", "silu");
        }
        if (json.number("attention_dropout", 0) != 0) {
            throw json.refused("attention_dropout", "0: dropout is not supported here");
        }
        json.number("initializer_range", 0);
        ModelFields.never(json, "is_encoder_decoder", "there is a decoder alone");
        boolean isQwen = architecture == DecoderArchitecture.QWEN2 || architecture == DecoderArchitecture.QWEN3;
        boolean hasBiases = architecture == DecoderArchitecture.LLAMA || architecture == DecoderArchitecture.QWEN3;
        refuseIn(hasBiases, "attention_bias");
        refuseIn(architecture == DecoderArchitecture.LLAMA, "mlp_bias");
        refuseIn(isQwen, "layer_types");
        refuseIn(isQwen, "use_sliding_window");
        refuseIn(isQwen, "max_window_layers");
        if (architecture == DecoderArchitecture.LLAMA && json.has("sliding_window")) {
            throw json.refused("sliding_window", "none: Llama has no windows");
        }
        if (layout == DecoderLayout.NVIDIA) {
            refuseOthersOfNvidia();
        }
        for (String field : json.fields().keySet()) {
            if (layout == DecoderLayout.NVIDIA && OF_NVIDIA.contains(field)) {
                continue;
            }
            if (!TAKEN.contains(field) && !WITHOUT_EFFECT.contains(field) && json.has(field)) {
                throw json.refused(
                        field, "no such field in " + layout.className(architecture) + ", or none that is supported");
            }
        }
    }

    /** NVIDIA's layers have no biases, Llama's heads no width of their own, and windows of transformers have a key fewer. */
    private void refuseOthersOfNvidia() {
        String name = DecoderLayout.NVIDIA.className(architecture);
        for (String bias : List.of("attention_bias", "mlp_bias")) {
            ModelFields.never(json, bias, name + " has no biases");
        }
        if (json.texts("layer_types").contains(DecoderFields.SLIDING) || json.flag("use_sliding_window", false)) {
            throw json.refused(
                    json.has("layer_types") ? "layer_types" : "use_sliding_window",
                    "no window, for " + name + " has others than transformers");
        }
        if (architecture == DecoderArchitecture.LLAMA
                && json.has("head_dim")
                && (long) ModelFields.size(json, "head_dim", 1) * ModelFields.size(json, "num_attention_heads", 32)
                        != ModelFields.size(json, "hidden_size", 4096)) {
            throw json.refused("head_dim", "hidden_size / num_attention_heads, which " + name + " has");
        }
        String mask = json.text("self_attn_mask_type", "padding_causal");
        if (!mask.equals("padding_causal") && !mask.equals("causal")) {
            throw json.refused("self_attn_mask_type", "padding_causal or causal");
        }
        ModelFields.never(json, "use_moe", "experts are not supported");
    }

    /** Refuses a field that says something, where the architecture does not look at it. */
    private void refuseIn(boolean isTaken, String field) {
        boolean saysNothing = !json.has(field) || Objects.equals(json.fields().get(field), false);
        if (!isTaken && !saysNothing) {
            throw json.refused(field, "none: " + architecture.className() + " does not look at it");
        }
    }
}
