package dev.chagres.models.huggingface;

import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.esm.ContactPredictor;
import dev.chagres.models.esm.Esm2Base.Pooler;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.CheckpointTensors.Found;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * An ESM-2 in a folder, checked: the sizes of {@code config.json}, and for each parameter the tensors that make it.
 *
 * <p>Threading: the device's thread.
 */
final class Esm2Source extends ModelSource {
    private static final String CLASSIFIER = "classifier.";

    private final EsmArchitecture architecture;
    private final EsmFields fields;
    private final Esm2Config config;

    private Esm2Source(EsmArchitecture architecture, EsmFields fields, Esm2Config sizes, CheckpointWeights weights) {
        boolean isNvidia = architecture == EsmArchitecture.NV_MASKED_LM;
        weights.ensureHas(isNvidia ? NvEsmTensors.last(sizes) : Esm2Tensors.last(sizes));
        List<Target> targets = switch (architecture) {
            case NV_MASKED_LM -> NvEsmTensors.targets(sizes, fields.isInterleaved() ? sizes.heads() : 0);
            case MASKED_LM -> Esm2Tensors.targets(sizes);
            case BASE -> Esm2Tensors.targets(sizes, pooler(architecture, weights));
            case TOKENS, SEQUENCES -> Esm2Tensors.targets(fields.classifier(sizes, task(architecture)));
        };
        targets.forEach(
                target -> weights.find(target, isNvidia ? CheckpointWeights.Rows.PADDED : CheckpointWeights.Rows.SAME));
        List<Double> frequencies = frequencies(sizes, fields, weights);
        weights.refuseOthers(
                "an " + architecture.className() + " of " + sizes.layers() + " layers",
                name -> Esm2Tensors.isFrequencies(name)
                        || Esm2Tensors.isUnused(name)
                        || name.equals(Esm2Tensors.TIED_DECODER));
        String embedding = isNvidia ? NvEsmTensors.EMBEDDING : Esm2Tensors.EMBEDDING;
        weights.checkTied(Esm2Tensors.TIED_DECODER, embedding);
        super(fields.json(), architecture.className(), embedding, targets, weights);
        this.architecture = architecture;
        this.fields = fields;
        config = sizes.withForm(sizes.form().withFrequencies(frequencies));
    }

    private static Task task(EsmArchitecture architecture) {
        return Objects.requireNonNull(architecture.task(), "task");
    }

    /** Returns whether a model without a head has a pooler, as its tensors say; of a model with a head none, though its files may have one. */
    Pooler pooler() {
        return pooler(architecture, weights());
    }

    private static Pooler pooler(EsmArchitecture architecture, CheckpointWeights weights) {
        boolean present = Esm2Tensors.namesOf(Esm2Tensors.POOLER).stream().anyMatch(weights.all()::containsKey);
        return architecture == EsmArchitecture.BASE && present ? Pooler.FIRST_TOKEN : Pooler.NONE;
    }

    /** Opens and checks a folder. */
    static Esm2Source open(Path folder) {
        JsonObject json = config(folder);
        EsmArchitecture architecture = EsmArchitecture.of(json);
        EsmFields fields = new EsmFields(json);
        Esm2Config sizes = fields.config(); // before any other file is read
        TokenizerFiles.check(folder);
        return CheckpointWeights.orClosed(
                new CheckpointWeights(CheckpointTensors.open(folder), Esm2Tensors::namesOf),
                weights -> new Esm2Source(architecture, fields, sizes, weights));
    }

    /** Returns the frequencies, which are the same wherever the files have them; those of the base where they have none. */
    private static List<Double> frequencies(Esm2Config sizes, EsmFields fields, CheckpointWeights weights) {
        @Nullable Found first = null;
        float[] values = {};
        for (Map.Entry<String, Found> tensor : weights.all().entrySet()) {
            if (Esm2Tensors.isFrequencies(tensor.getKey())) {
                CheckpointWeights.check(tensor.getValue(), sizes.headDim() / 2);
                float[] own = CheckpointWeights.floats(tensor.getValue().entry());
                if (first != null && !Arrays.equals(values, own)) {
                    throw tensor.getValue()
                            .refused("expected the frequencies of "
                                    + first.entry().name() + ", got others");
                }
                first = tensor.getValue();
                values = own;
            }
        }
        if (first == null) {
            double theta = fields.ropeTheta();
            return IntStream.range(0, sizes.headDim() / 2)
                    .mapToObj(i -> (double) (float) Math.pow(theta, -2.0 * i / sizes.headDim()))
                    .toList();
        }
        List<Double> all = new ArrayList<>();
        for (float value : values) {
            if (!Float.isFinite(value)) {
                throw first.refused("expected finite numbers, got " + value);
            }
            all.add((double) value);
        }
        return all;
    }

    /** Returns the regression over the maps of attention. */
    ContactPredictor.Regression contactHead() {
        String name = "esm.contact_head.regression.";
        Found weight = named(name + "weight");
        Found bias = named(name + "bias");
        CheckpointWeights.check(weight, 1, (long) config.layers() * config.heads());
        CheckpointWeights.check(bias, 1);
        List<Float> factors = new ArrayList<>();
        for (float one : CheckpointWeights.floats(weight.entry())) {
            factors.add(one);
        }
        return new ContactPredictor.Regression(factors, CheckpointWeights.floats(bias.entry())[0]);
    }

    private Found named(String tensor) {
        Found own = weights().all().get(tensor);
        Found bare = weights().all().get(tensor.substring(Esm2Tensors.PREFIX.length()));
        if (own == null && bare == null) {
            throw CheckpointException.ofTensor(weights().main(), tensor, "expected it for contacts, got none");
        }
        return own == null ? Objects.requireNonNull(bare) : own;
    }

    /** Returns sizes and form. */
    Esm2Config config() {
        return config;
    }

    EsmArchitecture architecture() {
        return architecture;
    }

    /** Refuses another head. */
    Esm2Source ensure(EsmArchitecture... expected) {
        if (!List.of(expected).contains(architecture)) {
            throw json().refused(
                            "architectures",
                            Arrays.stream(expected)
                                    .map(EsmArchitecture::className)
                                    .toList()
                                    .toString());
        }
        return this;
    }

    /** Returns sizes, form and classes of a classifier. */
    Esm2ClassifierConfig classifier() {
        return fields.classifier(config, task(architecture));
    }

    /** Returns the names of the classes, LABEL_0 and so on where the file has none. */
    List<String> labelNames() {
        int count = fields.labels();
        Map<String, String> given = json().has("id2label") ? json().textsByName("id2label") : Map.of();
        return IntStream.range(0, count)
                .mapToObj(i -> given.getOrDefault(String.valueOf(i), "LABEL_" + i))
                .toList();
    }

    /**
     * Returns the tensors of the folder that the model does not compute with, by the names of another folder.
     *
     * @param named the name that a tensor has there
     */
    Map<String, TensorSource> unused(UnaryOperator<String> named) {
        boolean pools = pooler() != Pooler.NONE;
        Map<String, TensorSource> unused = new HashMap<>();
        weights().all().forEach((name, found) -> {
            if (Esm2Tensors.isUnused(name) && !(pools && name.contains("pooler."))) {
                SafetensorsEntry entry = found.entry();
                TensorSpec spec = new TensorSpec(named.apply(name), entry.dtype(), entry.shape());
                unused.put(spec.name(), TensorSource.of(spec, entry.bytes()));
            }
        });
        return unused;
    }

    /** Copies the weights that all heads read. */
    void loadEncoder(Parameters parameters) {
        weights().load(encoder(), parameters);
    }

    /** Copies the weights of a model without a head, which may be all that is taken of one with a head. */
    void loadBase(Parameters parameters) {
        weights().load(architecture == EsmArchitecture.BASE ? targets() : encoder(), parameters);
    }

    private List<Target> encoder() {
        Set<String> names =
                Esm2Tensors.encoder(config).stream().map(Target::parameter).collect(Collectors.toSet());
        return targets().stream()
                .filter(target -> names.contains(target.parameter()))
                .toList();
    }

    /** The same of a model that may also have a head of its own, where the folder has that of the masked-language model. */
    @Override
    void begin(RunState state) {
        boolean hasHead = state.specs().stream().anyMatch(spec -> spec.name().startsWith(CLASSIFIER));
        boolean leavesHead = hasHead && architecture.beginsClassifiers();
        weights()
                .load(
                        leavesHead ? encoder() : targets(),
                        architecture.className(),
                        name -> PeftModules.isAdapter(name) || (leavesHead && name.startsWith(CLASSIFIER)),
                        state);
    }
}
