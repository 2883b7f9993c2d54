package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.layer.GeluForm;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form.Masks;
import dev.chagres.parameter.Parameters;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
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
 * Writes an ESM-2 to a folder.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Writer {
    private static final double BASE = 10_000;

    private final EsmArchitecture architecture;
    private final Esm2Config sizes;
    private final List<Target> targets;
    private final Parameters parameters;
    /** Of a classifier; 0 else. */
    private final int labels;

    private final SaveConfig config;
    private final Stream stream;

    Esm2Writer(Esm2 model, SaveConfig config) {
        this(
                EsmArchitecture.MASKED_LM,
                model.config(),
                Esm2Tensors.targets(model.config()),
                model.parameters(),
                0,
                config);
    }

    Esm2Writer(Esm2Classifier model, SaveConfig config) {
        this(
                EsmArchitecture.of(model.config().task()),
                model.config().encoder(),
                Esm2Tensors.targets(model.config()),
                model.parameters(),
                model.config().labels(),
                config);
    }

    private Esm2Writer(
            EsmArchitecture architecture,
            Esm2Config sizes,
            List<Target> targets,
            Parameters parameters,
            int labels,
            SaveConfig config) {
        if (sizes.form().gelu() != GeluForm.ERF) {
            throw new IllegalArgumentException("model: expected the exact GELU, which " + architecture.className()
                    + " computes, got " + sizes.form().gelu() + "; train with Esm2Form.published()");
        }
        this.architecture = architecture;
        this.sizes = sizes;
        this.targets = targets;
        this.parameters = parameters;
        this.labels = labels;
        this.config = config;
        stream = parameters.scope().stream();
    }

    void write(Path folder) {
        CheckpointWriter.write(folder, this::writeFiles);
    }

    private void writeFiles(Path folder) throws IOException {
        if (config.unusedFrom().isPresent()) {
            try (Esm2Source other = Esm2Source.open(config.unusedFrom().get())) {
                writeTensors(folder, other);
            }
        } else {
            writeTensors(folder, null);
        }
        TokenizerFiles.write(folder);
        JsonText.write(folder.resolve("config.json"), fields());
    }

    private void writeTensors(Path folder, @Nullable Esm2Source other) throws IOException {
        try (Scope views = stream.device().openScope(stream)) {
            Map<String, TensorSource> all = CheckpointWriter.sources(targets, parameters, views);
            MemorySegment frequencies = frequencies();
            Shape shape = Shape.of(sizes.headDim() / 2);
            Esm2Tensors.frequencies(sizes.layers())
                    .forEach(name ->
                            all.put(name, TensorSource.of(new TensorSpec(name, DType.FLOAT32, shape), frequencies)));
            if (other != null) {
                other.unused().forEach((name, found) -> all.put(name, copied(name, found)));
            }
            CheckpointWriter.writeTensors(folder, all, config.shardBytes());
        }
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

    private static TensorSource copied(String name, CheckpointTensors.Found found) {
        TensorSpec spec =
                new TensorSpec(name, found.entry().dtype(), found.entry().shape());
        return TensorSource.of(spec, found.entry().bytes());
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
        fields.put("torch_dtype", parameters.dtype().toString().toLowerCase(Locale.ROOT));
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
