package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.layer.GeluForm;
import dev.chagres.models.data.EsmVocabulary;
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

/**
 * What transformers makes an ESM-2 of, but for its weights: names of tensors, frequencies, configuration and tokenizer.
 *
 * <p>Threading: immutable.
 */
final class Esm2Files implements ModelFiles {
    private static final double BASE = 10_000;

    private final EsmArchitecture architecture;
    private final Esm2Config sizes;
    private final List<Target> targets;
    /** Of a classifier; 0 else. */
    private final int labels;

    private final DType dtype;

    Esm2Files(Esm2Config config, DType dtype) {
        this(EsmArchitecture.MASKED_LM, config, Esm2Tensors.targets(config), 0, dtype);
    }

    Esm2Files(Esm2ClassifierConfig config, DType dtype) {
        this(EsmArchitecture.of(config.task()), config.encoder(), Esm2Tensors.targets(config), config.labels(), dtype);
    }

    private Esm2Files(EsmArchitecture architecture, Esm2Config sizes, List<Target> targets, int labels, DType dtype) {
        this.architecture = architecture;
        this.sizes = sizes;
        this.targets = targets;
        this.labels = labels;
        this.dtype = dtype;
    }

    /** Returns whether transformers computes what a model of this form does. */
    static boolean areOf(Esm2Config config) {
        return config.form().gelu() == GeluForm.ERF;
    }

    List<Target> targets() {
        return targets;
    }

    /** Throws if transformers computes something else. */
    Esm2Files ensureForm() {
        if (!areOf(sizes)) {
            throw new IllegalArgumentException("model: expected the exact GELU, which " + architecture.className()
                    + " computes, got " + sizes.form().gelu() + "; train with Esm2Form.published()");
        }
        return this;
    }

    @Override
    public List<Named> tensors(String parameter) {
        return targets.stream()
                .filter(target -> target.parameter().equals(parameter))
                .flatMap(target ->
                        target.parts().stream().map(part -> new Named(part.tensor(), Shape.of(part.sizes()))))
                .toList();
    }

    @Override
    public List<TensorSource> constants() {
        MemorySegment frequencies = frequencies();
        Shape shape = Shape.of(sizes.headDim() / 2);
        return Esm2Tensors.frequencies(sizes.layers()).stream()
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
        fields.put("model_type", "esm");
        fields.put("num_attention_heads", sizes.heads());
        fields.put("num_hidden_layers", sizes.layers());
        fields.put("pad_token_id", EsmVocabulary.PAD);
        fields.put("position_embedding_type", "rotary");
        fields.put("tie_word_embeddings", true);
        fields.put("token_dropout", sizes.form().masks() == Masks.DROPPED);
        fields.put("torch_dtype", dtype.toString().toLowerCase(Locale.ROOT));
        fields.put("vocab_size", EsmVocabulary.SIZE);
        if (labels > 0) {
            Map<String, Object> names = new LinkedHashMap<>();
            Map<String, Object> numbers = new LinkedHashMap<>();
            for (int i = 0; i < labels; i++) {
                names.put(String.valueOf(i), "LABEL_" + i);
                numbers.put("LABEL_" + i, i);
            }
            fields.put("id2label", names);
            fields.put("label2id", numbers);
            fields.put("problem_type", "single_label_classification");
        }
        return fields;
    }
}
