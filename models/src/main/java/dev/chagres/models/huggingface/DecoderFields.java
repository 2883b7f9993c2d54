package dev.chagres.models.huggingface;

import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.layer.Bias;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.decoder.SpecialTokens;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * The fields of a configuration of a decoder of transformers: what they say of a {@link DecoderConfig}, and a refusal of each that says
 * something else. A field that is not there has the default of transformers 5.17.
 *
 * <p>Threading: immutable.
 */
record DecoderFields(JsonObject json, DecoderArchitecture architecture) {
    private static final int MOST = 1 << 24;

    /** Positions of a rotary table that fit into memory whatever a head's size is. */
    private static final int MOST_POSITIONS = 1 << 20;

    static final String FULL = "full_attention";
    static final String SLIDING = "sliding_attention";

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

    /** Returns the architecture that a configuration names; empty where it names none of these. */
    static Optional<DecoderArchitecture> architecture(JsonObject config) {
        List<String> named = config.texts("architectures");
        return Arrays.stream(DecoderArchitecture.values())
                .filter(each -> Arrays.stream(DecoderLayout.values())
                        .anyMatch(layout -> layout.has(each) && named.contains(layout.className(each))))
                .findFirst();
    }

    /** Returns how the folder's tensors are laid out. */
    DecoderLayout layout() {
        return json.texts("architectures").contains(architecture.className())
                ? DecoderLayout.TRANSFORMERS
                : DecoderLayout.NVIDIA;
    }

    private boolean isQwen() {
        return architecture == DecoderArchitecture.QWEN2 || architecture == DecoderArchitecture.QWEN3;
    }

    /** Returns sizes, form and special tokens. */
    DecoderConfig config() {
        refuseOthers();
        DecoderSizes sizes = sizes();
        float epsilon = (float) json.number("rms_norm_eps", 1e-6);
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw json.refused("rms_norm_eps", "a number above 0");
        }
        DecoderForm form = new DecoderForm(
                architecture,
                attentionBias(),
                json.flag("mlp_bias", false) ? Bias.PRESENT : Bias.ABSENT,
                json.flag("tie_word_embeddings", false) ? DecoderForm.Head.TIED : DecoderForm.Head.SEPARATE,
                epsilon,
                rotary(sizes),
                windows(sizes.layers()));
        return new DecoderConfig(sizes, form).withTokens(tokens(sizes.vocabulary()));
    }

    private DecoderSizes sizes() {
        int vocabulary = json.integer("vocab_size", isQwen() ? 151_936 : 32_000, 1, MOST);
        int hidden = json.integer("hidden_size", 4096, 1, MOST);
        int heads = json.integer("num_attention_heads", 32, 1, MOST);
        boolean isAbsent = !json.fields().containsKey("num_key_value_heads");
        int usual = switch (architecture) {
            case LLAMA -> heads;
            case MISTRAL -> 8;
            case QWEN2, QWEN3 -> 32;
        };
        int keyHeads = json.integer("num_key_value_heads", isAbsent ? usual : heads, 1, MOST);
        if (heads % keyHeads != 0) {
            throw json.refused("num_key_value_heads", "a divisor of num_attention_heads, " + heads);
        }
        int inner = switch (architecture) {
            case LLAMA -> 11_008;
            case MISTRAL -> 14_336;
            case QWEN2, QWEN3 -> 22_016;
        };
        return new DecoderSizes(
                vocabulary,
                json.integer("num_hidden_layers", 32, 1, 100_000),
                hidden,
                heads,
                keyHeads,
                headDim(hidden, heads),
                json.integer("intermediate_size", inner, 1, MOST),
                context());
    }

    private int headDim(int hidden, int heads) {
        if (architecture == DecoderArchitecture.QWEN3) {
            return json.integer("head_dim", 128, 1, MOST);
        }
        if (!json.has("head_dim") && hidden % heads != 0) {
            throw json.refused(
                    "head_dim",
                    "a number, for num_attention_heads, " + heads + ", does not divide hidden_size, " + hidden);
        }
        return json.integer("head_dim", hidden / heads, 1, MOST);
    }

    private int context() {
        int usual = switch (architecture) {
            case LLAMA -> 2048;
            case MISTRAL -> 131_072;
            case QWEN2, QWEN3 -> 32_768;
        };
        return json.integer("max_position_embeddings", usual, 1, MOST_POSITIONS);
    }

    private Bias attentionBias() {
        if (architecture == DecoderArchitecture.QWEN2) {
            return Bias.PRESENT;
        }
        return json.flag("attention_bias", false) ? Bias.PRESENT : Bias.ABSENT;
    }

    private SpecialTokens tokens(int vocabulary) {
        return new SpecialTokens(
                token("bos_token_id", vocabulary), ends(vocabulary), token("pad_token_id", vocabulary));
    }

    /** Returns a token; one outside of the vocabulary, as -1 in old files, is none. */
    private Optional<Integer> token(String field, int vocabulary) {
        int token = json.integer(field, -1, -1, MOST);
        return token >= 0 && token < vocabulary ? Optional.of(token) : Optional.empty();
    }

    private List<Integer> ends(int vocabulary) {
        if (!(json.fields().get("eos_token_id") instanceof List<?>)) {
            return token("eos_token_id", vocabulary).stream().toList();
        }
        return json.integers("eos_token_id", 0, MOST).stream()
                .filter(token -> token < vocabulary)
                .toList();
    }

    private RotaryConfig rotary(DecoderSizes sizes) {
        if (json.has("rope_scaling") && json.has("rope_parameters")) {
            throw json.refused("rope_scaling", "none, for there is rope_parameters, too");
        }
        partial(json);
        RotaryConfig plain = RotaryConfig.of(evenHeads(sizes));
        String field = json.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
        if (!json.has(field)) {
            return plain.withBase(theta(json, 10_000));
        }
        JsonObject rope = json.object(field);
        partial(rope);
        String type = rope.text("rope_type", rope.text("type", "default"));
        if (rope.has("type") && !rope.text("type", "").equals(type)) {
            throw rope.refused("type", "that of rope_type, " + type);
        }
        RotaryConfig based = plain.withBase(theta(rope, theta(json, 10_000)));
        return switch (type) {
            case "default" -> {
                refuseOthersOf(rope, Set.of());
                yield based;
            }
            case "linear" -> {
                refuseOthersOf(rope, Set.of("factor"));
                yield based.withInterpolation(positive(rope, "factor"));
            }
            case "llama3" -> based.withScaling(llama3(rope, sizes.context()));
            default -> throw rope.refused(rope.has("rope_type") ? "rope_type" : "type", "default, linear or llama3");
        };
    }

    private int evenHeads(DecoderSizes sizes) {
        if (sizes.headDim() % 2 != 0) {
            throw json.refused("head_dim", "an even number of columns, which rotation pairs, not " + sizes.headDim());
        }
        return sizes.headDim();
    }

    private static void partial(JsonObject rope) {
        if (rope.number("partial_rotary_factor", 1) != 1) {
            throw rope.refused("partial_rotary_factor", "1: whole heads are rotated");
        }
    }

    private static double theta(JsonObject rope, double usual) {
        double theta = rope.number("rope_theta", usual);
        if (!(theta > 1) || theta > 1e12) {
            throw rope.refused("rope_theta", "a number above 1 and up to 1e12");
        }
        return theta;
    }

    private Llama3Scaling llama3(JsonObject rope, int context) {
        String original = "original_max_position_embeddings";
        refuseOthersOf(rope, Set.of("factor", "low_freq_factor", "high_freq_factor", original));
        double low = positive(rope, "low_freq_factor");
        double high = positive(rope, "high_freq_factor");
        if (high <= low) {
            throw rope.refused("high_freq_factor", "more than low_freq_factor, " + low);
        }
        int positions =
                json.has(original) ? json.integer(original, 1, 1, MOST) : rope.integer(original, context, 1, MOST);
        return new Llama3Scaling(positive(rope, "factor"), low, high, positions);
    }

    private static double positive(JsonObject rope, String field) {
        double value = rope.number(field, 0);
        if (!(value > 0)) {
            throw rope.refused(field, "a number above 0");
        }
        return value;
    }

    private static void refuseOthersOf(JsonObject rope, Set<String> taken) {
        Set<String> always = Set.of("rope_type", "type", "rope_theta", "partial_rotary_factor");
        rope.fields().keySet().stream()
                .filter(field -> !taken.contains(field) && !always.contains(field) && rope.has(field))
                .findFirst()
                .ifPresent(field -> {
                    throw rope.refused(
                            field,
                            "none with this rope_type, which takes "
                                    + Stream.concat(Stream.of("rope_theta"), taken.stream())
                                            .sorted()
                                            .toList());
                });
    }

    private List<Integer> windows(int layers) {
        if (architecture == DecoderArchitecture.MISTRAL) {
            boolean isNull = json.fields().containsKey("sliding_window") && !json.has("sliding_window");
            return isNull
                    ? List.of()
                    : IntStream.range(0, layers).mapToObj(i -> window(4096)).toList();
        }
        if (!isQwen()) {
            return List.of();
        }
        int window = json.flag("use_sliding_window", false) ? window(4096) : 0;
        int first = json.integer("max_window_layers", 28, 0, MOST);
        List<String> types = json.texts("layer_types");
        if (json.has("layer_types") && types.size() != layers) {
            throw json.refused("layer_types", "one for each of " + layers + " layers");
        }
        List<Integer> windows = IntStream.range(0, layers)
                .mapToObj(i -> isSliding(types, i, first) ? window : 0)
                .toList();
        if (window == 0 && types.contains(SLIDING)) {
            throw json.refused("layer_types", FULL + " alone, for use_sliding_window or sliding_window says none");
        }
        return windows.stream().allMatch(each -> each == 0) ? List.of() : windows;
    }

    private boolean isSliding(List<String> types, int layer, int first) {
        if (types.isEmpty()) {
            return layer >= first;
        }
        String type = types.get(layer);
        if (!type.equals(FULL) && !type.equals(SLIDING)) {
            throw json.refused("layer_types", FULL + " or " + SLIDING + " each");
        }
        return type.equals(SLIDING);
    }

    /** Returns the keys of a window; 0 where the field says none. */
    private int window(int usual) {
        if (json.fields().containsKey("sliding_window") && !json.has("sliding_window")) {
            return 0;
        }
        return json.integer("sliding_window", usual, 1, Integer.MAX_VALUE);
    }

    private void refuseOthers() {
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
        if (json.flag("is_encoder_decoder", false)) {
            throw json.refused("is_encoder_decoder", "false");
        }
        boolean hasBiases = architecture == DecoderArchitecture.LLAMA || architecture == DecoderArchitecture.QWEN3;
        refuseIn(hasBiases, "attention_bias");
        refuseIn(architecture == DecoderArchitecture.LLAMA, "mlp_bias");
        refuseIn(isQwen(), "layer_types");
        refuseIn(isQwen(), "use_sliding_window");
        refuseIn(isQwen(), "max_window_layers");
        if (architecture == DecoderArchitecture.LLAMA && json.has("sliding_window")) {
            throw json.refused("sliding_window", "none: Llama has no windows");
        }
        if (layout() == DecoderLayout.NVIDIA) {
            refuseOthersOfNvidia();
        }
        for (String field : json.fields().keySet()) {
            if (layout() == DecoderLayout.NVIDIA && OF_NVIDIA.contains(field)) {
                continue;
            }
            if (!TAKEN.contains(field) && !WITHOUT_EFFECT.contains(field) && json.has(field)) {
                throw json.refused(
                        field, "no such field in " + layout().className(architecture) + ", or none that is supported");
            }
        }
    }

    /** NVIDIA's layers have no biases, Llama's heads no width of their own, and windows of transformers have a key fewer. */
    private void refuseOthersOfNvidia() {
        String name = DecoderLayout.NVIDIA.className(architecture);
        for (String bias : List.of("attention_bias", "mlp_bias")) {
            if (json.flag(bias, false)) {
                throw json.refused(bias, "false: " + name + " has no biases");
            }
        }
        if (json.texts("layer_types").contains(SLIDING) || json.flag("use_sliding_window", false)) {
            throw json.refused(
                    json.has("layer_types") ? "layer_types" : "use_sliding_window",
                    "no window, for " + name + " has others than transformers");
        }
        if (architecture == DecoderArchitecture.LLAMA
                && json.has("head_dim")
                && (long) json.integer("head_dim", 1, 1, MOST) * json.integer("num_attention_heads", 32, 1, MOST)
                        != json.integer("hidden_size", 4096, 1, MOST)) {
            throw json.refused("head_dim", "hidden_size / num_attention_heads, which " + name + " has");
        }
        String mask = json.text("self_attn_mask_type", "padding_causal");
        if (!mask.equals("padding_causal") && !mask.equals("causal")) {
            throw json.refused("self_attn_mask_type", "padding_causal or causal");
        }
        if (json.flag("use_moe", false)) {
            throw json.refused("use_moe", "false: experts are not supported");
        }
    }

    /** Refuses a field that says something, where the architecture does not look at it. */
    private void refuseIn(boolean isTaken, String field) {
        boolean saysNothing = !json.has(field) || Objects.equals(json.fields().get(field), false);
        if (!isTaken && !saysNothing) {
            throw json.refused(field, "none: " + architecture.className() + " does not look at it");
        }
    }
}
