package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.layer.Bias;
import dev.chagres.models.decoder.DecoderArchitecture;
import dev.chagres.models.decoder.DecoderConfig;
import dev.chagres.models.decoder.DecoderForm;
import dev.chagres.models.decoder.DecoderSizes;
import dev.chagres.models.decoder.SpecialTokens;
import dev.chagres.te.FusedRope.Pairing;
import java.math.BigDecimal;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * What transformers makes a decoder of, but for its weights: names of tensors, configuration and tokenizer. Rotation is written as transformers
 * 4 reads it, which 5 reads, too.
 *
 * <p>Threading: immutable.
 */
final class DecoderFiles extends FolderFiles {
    private final DecoderConfig config;
    private final DecoderSizes sizes;
    private final DecoderForm form;
    private final DecoderLayout layout;
    private final DType dtype;
    /** Null for no tokenizer. */
    private final @Nullable Path tokenizer;

    /**
     * @throws IllegalArgumentException when the code that is to open the folder computes something else
     */
    DecoderFiles(DecoderConfig config, DecoderLayout layout, DType dtype, @Nullable Path tokenizer) {
        this.config = config;
        this.layout = layout;
        this.dtype = dtype;
        this.tokenizer = tokenizer;
        sizes = config.sizes();
        form = config.form();
        RotaryConfig rotary = form.rotary();
        boolean isKnown = rotary.rotatedDim() == rotary.headDim()
                && rotary.pairing() == Pairing.HALVES
                && rotary.frequencies().isEmpty()
                && (rotary.scaling() == null || rotary.interpolationFactor() == 1);
        if (!isKnown) {
            throw new IllegalArgumentException("model: expected a rotation of whole heads by halves, by base, linear"
                    + " factor or Llama 3's scaling, which "
                    + form.architecture().className() + " has, got " + rotary);
        }
        if (layout == DecoderLayout.NVIDIA) {
            ensureLayout();
        }
    }

    private void ensureLayout() {
        boolean hasBias = form.attentionBias() == Bias.PRESENT || form.mlpBias() == Bias.PRESENT;
        boolean hasWidth =
                form.architecture() == DecoderArchitecture.LLAMA && sizes.headDim() * sizes.heads() != sizes.hidden();
        if (!layout.has(form.architecture())
                || hasBias
                || hasWidth
                || !form.windows().isEmpty()) {
            throw new IllegalArgumentException(
                    "model: expected Llama, with heads of hidden / heads columns, or Qwen 3, without"
                            + " biases and windows, which NVIDIA's layout has, got " + form + " of " + sizes);
        }
    }

    @Override
    List<Target> targets() {
        return DecoderTensors.targets(config, layout);
    }

    @Override
    public Map<String, byte[]> files() {
        Map<String, byte[]> files = new LinkedHashMap<>();
        if (tokenizer != null) {
            files.putAll(TokenizerFiles.contents(tokenizer));
        }
        files.put(CheckpointWeights.CONFIG, JsonText.bytes(fields()));
        return files;
    }

    private Map<String, @Nullable Object> fields() {
        Map<String, @Nullable Object> fields = new TreeMap<>();
        fields.put("architectures", List.of(layout.className(form.architecture())));
        fields.put("attention_dropout", 0.0);
        fields.put("head_dim", sizes.headDim());
        fields.put("hidden_act", "silu");
        fields.put("hidden_size", sizes.hidden());
        fields.put("initializer_range", 0.02);
        fields.put("intermediate_size", sizes.inner());
        fields.put("max_position_embeddings", sizes.context());
        fields.put("model_type", form.architecture().modelType());
        fields.put("num_attention_heads", sizes.heads());
        fields.put("num_hidden_layers", sizes.layers());
        fields.put("num_key_value_heads", sizes.keyHeads());
        fields.put("rms_norm_eps", new BigDecimal(Float.toString(form.normEpsilon())).doubleValue());
        fields.put("rope_theta", form.rotary().base());
        fields.put("rope_scaling", scaling());
        fields.put("tie_word_embeddings", form.head() == DecoderForm.Head.TIED);
        fields.put("torch_dtype", dtype.toString().toLowerCase(Locale.ROOT));
        fields.put("use_cache", true);
        fields.put("vocab_size", sizes.vocabulary());
        putBiases(fields);
        putWindows(fields);
        if (layout == DecoderLayout.NVIDIA) {
            fields.put("attn_input_format", "thd");
            fields.put("self_attn_mask_type", "padding_causal");
        }
        putTokens(fields);
        return fields;
    }

    private @Nullable Map<String, Object> scaling() {
        Map<String, Object> scaling = new LinkedHashMap<>();
        Llama3Scaling llama3 = form.rotary().scaling();
        if (llama3 != null) {
            scaling.put("factor", llama3.factor());
            scaling.put("high_freq_factor", llama3.highFrequencyFactor());
            scaling.put("low_freq_factor", llama3.lowFrequencyFactor());
            scaling.put("original_max_position_embeddings", llama3.originalPositions());
            scaling.put("rope_type", "llama3");
            return scaling;
        }
        if (form.rotary().interpolationFactor() == 1) {
            return null;
        }
        scaling.put("factor", form.rotary().interpolationFactor());
        scaling.put("rope_type", "linear");
        return scaling;
    }

    private void putBiases(Map<String, @Nullable Object> fields) {
        boolean isLlama = form.architecture() == DecoderArchitecture.LLAMA;
        if (isLlama || form.architecture() == DecoderArchitecture.QWEN3) {
            fields.put("attention_bias", form.attentionBias() == Bias.PRESENT);
        }
        if (isLlama) {
            fields.put("mlp_bias", form.mlpBias() == Bias.PRESENT);
        }
    }

    private void putWindows(Map<String, @Nullable Object> fields) {
        if (form.architecture() == DecoderArchitecture.LLAMA) {
            return;
        }
        int window = form.windows().stream().max(Integer::compare).orElse(0);
        fields.put("sliding_window", window == 0 ? null : window);
        if (form.architecture() == DecoderArchitecture.MISTRAL) {
            return;
        }
        fields.put("use_sliding_window", window > 0);
        fields.put(
                "layer_types",
                IntStream.range(0, sizes.layers())
                        .mapToObj(i -> form.window(i) > 0 ? DecoderFields.SLIDING : DecoderFields.FULL)
                        .toList());
        // What versions of transformers look at that know no layer_types.
        fields.put(
                "max_window_layers",
                IntStream.range(0, sizes.layers())
                        .filter(i -> form.window(i) > 0)
                        .findFirst()
                        .orElse(sizes.layers()));
    }

    private void putTokens(Map<String, @Nullable Object> fields) {
        SpecialTokens tokens = config.tokens();
        fields.put("bos_token_id", tokens.begin().orElse(null));
        fields.put("pad_token_id", tokens.padding().orElse(null));
        fields.put(
                "eos_token_id",
                switch (tokens.ends().size()) {
                    case 0 -> null;
                    case 1 -> tokens.ends().getFirst();
                    default -> tokens.ends();
                });
    }
}
