package dev.chagres.models.huggingface;

import dev.chagres.layer.Bias;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.decoder.SpecialTokens;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * The fields of a configuration of a decoder of transformers: what they say of a {@link DecoderConfig}, and a refusal of each that says
 * something else. A field that is not there has the default of transformers 5.17.
 *
 * <p>Threading: immutable.
 */
record DecoderFields(JsonObject json, DecoderArchitecture architecture) {
    private static final int MOST = 1 << 24;

    static final String FULL = "full_attention";
    static final String SLIDING = "sliding_attention";

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
        new KnownFields(json, architecture, layout()).refuseOthers();
        DecoderSizes sizes = sizes();
        DecoderForm form = new DecoderForm(
                architecture,
                attentionBias(),
                json.flag("mlp_bias", false) ? Bias.PRESENT : Bias.ABSENT,
                json.flag("tie_word_embeddings", false) ? DecoderForm.Head.TIED : DecoderForm.Head.SEPARATE,
                ModelFields.epsilon(json, "rms_norm_eps", 1e-6),
                new RotaryFields(json, sizes.context()).rotary(sizes.headDim()),
                windows(sizes.layers()));
        return new DecoderConfig(sizes, form).withTokens(tokens(sizes.vocabulary()));
    }

    private DecoderSizes sizes() {
        int vocabulary = ModelFields.size(json, "vocab_size", isQwen() ? 151_936 : 32_000);
        int hidden = ModelFields.size(json, "hidden_size", 4096);
        int heads = ModelFields.size(json, "num_attention_heads", 32);
        boolean isAbsent = !json.fields().containsKey("num_key_value_heads");
        int usual = switch (architecture) {
            case LLAMA -> heads;
            case MISTRAL -> 8;
            case QWEN2, QWEN3 -> 32;
        };
        int keyHeads = ModelFields.size(json, "num_key_value_heads", isAbsent ? usual : heads);
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
                ModelFields.layers(json, 32),
                hidden,
                heads,
                keyHeads,
                headDim(hidden, heads),
                ModelFields.size(json, "intermediate_size", inner),
                context());
    }

    private int headDim(int hidden, int heads) {
        if (architecture == DecoderArchitecture.QWEN3) {
            return ModelFields.size(json, "head_dim", 128);
        }
        if (!json.has("head_dim") && hidden % heads != 0) {
            throw json.refused(
                    "head_dim",
                    "a number, for num_attention_heads, " + heads + ", does not divide hidden_size, " + hidden);
        }
        return ModelFields.size(json, "head_dim", hidden / heads);
    }

    private int context() {
        int usual = switch (architecture) {
            case LLAMA -> 2048;
            case MISTRAL -> 131_072;
            case QWEN2, QWEN3 -> 32_768;
        };
        return ModelFields.context(json, usual);
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
}
