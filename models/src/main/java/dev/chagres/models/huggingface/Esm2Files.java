package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.layer.GeluForm;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2Base.Pooler;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form.Masks;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.math.BigDecimal;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * What transformers makes an ESM-2 of, but for its weights: names of tensors, frequencies, configuration and tokenizer.
 *
 * <p>Threading: immutable.
 */
final class Esm2Files extends FolderFiles {
    private static final double BASE = 10_000;

    private final EsmArchitecture architecture;
    private final EsmLayout layout;
    private final Esm2Config sizes;
    private final List<Target> targets;
    private final @Nullable Esm2ClassifierConfig classifier;
    private final List<String> labels;
    private final DType dtype;

    Esm2Files(Esm2Config config, DType dtype, EsmLayout layout) {
        this.layout = layout;
        architecture = isNvidia() ? EsmArchitecture.NV_MASKED_LM : EsmArchitecture.MASKED_LM;
        sizes = config;
        targets = isNvidia() ? NvEsmTensors.targets(config, config.heads()) : Esm2Tensors.targets(config);
        classifier = null;
        labels = List.of();
        this.dtype = dtype;
    }

    /** Of a model without a head. */
    Esm2Files(Esm2Config config, Pooler pooler, DType dtype) {
        layout = EsmLayout.TRANSFORMERS;
        architecture = EsmArchitecture.BASE;
        sizes = config;
        targets = Esm2Tensors.withoutPrefix(Esm2Tensors.targets(config, pooler));
        classifier = null;
        labels = List.of();
        this.dtype = dtype;
    }

    /** {@code labels}: names of the classes; none for LABEL_0 and so on. */
    Esm2Files(Esm2ClassifierConfig config, List<String> labels, DType dtype) {
        if (!labels.isEmpty() && labels.size() != config.labels()) {
            throw new IllegalArgumentException(
                    "labels: expected a name for each of " + config.labels() + " classes, got " + labels);
        }
        this.labels = labels;
        layout = EsmLayout.TRANSFORMERS;
        architecture = EsmArchitecture.of(config.task());
        sizes = config.encoder();
        targets = Esm2Tensors.targets(config);
        classifier = config;
        this.dtype = dtype;
    }

    /** Returns whether transformers computes what a model of this form does. */
    static boolean areOf(Esm2Config config) {
        return config.form().gelu() == GeluForm.ERF && config.form().headGelu() == GeluForm.ERF;
    }

    boolean isNvidia() {
        return layout.isNvidia();
    }

    @Override
    long paddedRows() {
        return layout == EsmLayout.NV_ESM ? EsmVocabulary.PADDED_SIZE : 0;
    }

    @Override
    List<Target> targets() {
        return targets;
    }

    /** Returns the name that a tensor of the encoder has in a file. */
    String named(String tensor) {
        String bare = Esm2Tensors.withoutPrefix(tensor);
        return architecture == EsmArchitecture.BASE ? bare : Esm2Tensors.PREFIX + bare;
    }

    /** Throws if the code that opens the folder computes something else. */
    Esm2Files ensureForm() {
        GeluForm gelu = sizes.form().gelu();
        GeluForm head = sizes.form().headGelu();
        if (gelu != (isNvidia() ? GeluForm.TANH : GeluForm.ERF) || head != GeluForm.ERF) {
            throw new IllegalArgumentException("model: expected "
                    + (isNvidia() ? "the GELU by tanh in layers and the exact one in the head" : "the exact GELU")
                    + ", which " + architecture.className() + " computes, got " + gelu
                    + (head == gelu ? "" : " and " + head)
                    + (isNvidia() ? "" : "; train with Esm2Form.published()"));
        }
        return this;
    }

    @Override
    public List<TensorSource> constants() {
        if (isNvidia()) {
            return List.of();
        }
        MemorySegment frequencies = frequencies();
        Shape shape = Shape.of(sizes.headDim() / 2);
        return Esm2Tensors.frequencies(sizes.layers()).stream()
                .map(this::named)
                .map(name -> TensorSource.of(new TensorSpec(name, DType.FLOAT32, shape), frequencies))
                .toList();
    }

    private MemorySegment frequencies() {
        List<Double> given = sizes.form().frequencies();
        MemorySegment bytes = MemorySegment.ofArray(new byte[4 * (sizes.headDim() / 2)]);
        IntStream.range(0, sizes.headDim() / 2).forEach(i -> {
            double value = given.isEmpty() ? Math.pow(BASE, -2.0 * i / sizes.headDim()) : given.get(i);
            bytes.setAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, i, (float) value);
        });
        return bytes;
    }

    @Override
    public Map<String, byte[]> files() {
        Map<String, byte[]> files = new LinkedHashMap<>(TokenizerFiles.contents());
        files.put("config.json", JsonText.bytes(fields()));
        return files;
    }

    private Map<String, Object> fields() {
        Map<String, Object> fields = new TreeMap<>();
        fields.put("architectures", List.of(architecture.className()));
        fields.put("attention_probs_dropout_prob", 0.0);
        fields.put("emb_layer_norm_before", false);
        fields.put("hidden_act", "gelu");
        fields.put("hidden_dropout_prob", 0.0);
        fields.put("hidden_size", sizes.hidden());
        fields.put("initializer_range", 0.02);
        fields.put("intermediate_size", sizes.inner());
        fields.put("is_folding_model", false);
        fields.put("layer_norm_eps", new BigDecimal(Float.toString(sizes.form().normEpsilon())).doubleValue());
        fields.put("mask_token_id", EsmVocabulary.MASK);
        fields.put("max_position_embeddings", sizes.context());
        fields.put("model_type", isNvidia() ? "nv_esm" : "esm");
        if (isNvidia()) {
            fields.put("add_pooling_layer", false);
            fields.put("attn_input_format", "bshd");
            fields.put("attn_mask_type", "padding");
            fields.put("encoder_activation", "gelu");
            fields.put("fuse_qkv_params", true);
            fields.put("qkv_weight_interleaved", true);
            fields.put("padded_vocab_size", Math.max(EsmVocabulary.SIZE, paddedRows()));
        }
        fields.put("num_attention_heads", sizes.heads());
        fields.put("num_hidden_layers", sizes.layers());
        fields.put("pad_token_id", EsmVocabulary.PAD);
        fields.put("position_embedding_type", "rotary");
        fields.put("tie_word_embeddings", true);
        fields.put("token_dropout", sizes.form().masks() == Masks.DROPPED);
        fields.put("torch_dtype", dtype.toString().toLowerCase(Locale.ROOT));
        fields.put("vocab_size", EsmVocabulary.SIZE);
        if (classifier != null) {
            Map<String, Object> names = new LinkedHashMap<>();
            Map<String, Object> numbers = new LinkedHashMap<>();
            for (int i = 0; i < classifier.labels(); i++) {
                String name = labels.isEmpty() ? "LABEL_" + i : labels.get(i);
                names.put(String.valueOf(i), name);
                numbers.put(name, i);
            }
            fields.put("id2label", names);
            fields.put("label2id", numbers);
            fields.put("problem_type", EsmFields.nameOf(classifier.problem()));
        }
        return fields;
    }
}
