package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.batch.TrainedModel;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import dev.chagres.models.decoder.Decoder;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * Low-rank adapters of an ESM-2 or a decoder in and out of folders of PEFT: {@code adapter_config.json} and {@code adapter_model.safetensors}. The weights that
 * they adapt are in another folder, of transformers.
 *
 * {@snippet file="dev/chagres/models/huggingface/PeftAdaptersTest.java" region="peft"}
 *
 * <p>Every field of {@code adapter_config.json} is either taken or refused by name, and so is each tensor. Where the model's folder has an {@code
 * EsmForMaskedLM} and {@code task_type} is that of a classifier, its head is that of {@code modules_to_save}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code LoraConfig} and {@code save_pretrained} of PEFT 0.21.
 */
public final class PeftAdapters {
    private static final String LABELS = "labels.json";
    private static final String NAMES = "id2label";

    private PeftAdapters() {}

    /**
     * Returns the adapters in a folder.
     *
     * @param model folder of the model that they adapt
     * @throws CheckpointException when a file cannot be read, or says something that is not supported; file and field or tensor are named
     * @throws dev.chagres.io.SafetensorsException when a safetensors file is damaged
     */
    public static LoraConfig config(Path model, Path adapters) {
        Objects.requireNonNull(model, "model");
        if (Models.isDecoder(model)) {
            try (DecoderSource base = DecoderSource.open(model);
                    PeftSource source = decoder(base, adapters)) {
                return source.lora();
            }
        }
        try (PeftEsm2 source = open(model, adapters)) {
            return source.lora();
        }
    }

    private static PeftEsm2 open(Path model, Path adapters) {
        return PeftEsm2.open(Objects.requireNonNull(model, "model"), Objects.requireNonNull(adapters, "adapters"));
    }

    private static PeftSource decoder(DecoderSource base, Path adapters) {
        base.ensureLayout(DecoderLayout.TRANSFORMERS);
        PeftConfig fields = PeftConfig.read(Objects.requireNonNull(adapters, "adapters"));
        return PeftSource.of(fields, PeftSource.tensors(adapters), PeftModules.of(base.config()));
    }

    /**
     * Makes a decoder with adapters, which can be trained on.
     *
     * @param model folder of the model
     * @param adapters folder of the adapters
     * @param dtype of weights, adapters and activations
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the type is no float
     */
    public static Decoder openDecoder(Device device, Path model, Path adapters, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (DecoderSource base = DecoderSource.open(Objects.requireNonNull(model, "model"));
                PeftSource source = decoder(base, adapters)) {
            return CheckpointWeights.loaded(
                    () -> new Decoder(device, base.config(), adapted(source.lora()), memory),
                    made -> {
                        base.load(made.parameters());
                        source.load(made.parameters());
                    },
                    model);
        }
    }

    /**
     * Makes a decoder without adapters, whose weights are {@code W + factor B A}, as {@link #openMergedClassifier} does; {@link
     * DecoderCheckpoint#save} saves it for transformers.
     *
     * @param model folder of the model
     * @param adapters folder of the adapters
     * @param dtype of weights and activations
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the type is no float
     */
    public static Decoder openMergedDecoder(Device device, Path model, Path adapters, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (DecoderSource base = DecoderSource.open(Objects.requireNonNull(model, "model"));
                PeftSource source = decoder(base, adapters)) {
            return CheckpointWeights.loaded(
                    () -> new Decoder(device, base.config(), new ModelPlan(), memory),
                    made -> {
                        base.load(made.parameters());
                        source.merge(made.parameters());
                    },
                    model);
        }
    }

    /**
     * Makes a classifier with adapters, which can be trained on.
     *
     * @param model folder of the model
     * @param adapters folder of the adapters
     * @param dtype of weights, adapters and activations
     * @throws CheckpointException as {@link #config}, or when they are not those of a classifier
     * @throws IllegalArgumentException when the type is no float
     */
    public static Esm2Classifier openClassifier(Device device, Path model, Path adapters, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (PeftEsm2 source = open(model, adapters)) {
            Esm2ClassifierConfig config = classifier(source);
            return CheckpointWeights.loaded(
                    () -> new Esm2Classifier(device, config, adapted(source.lora()), memory),
                    made -> source.load(made.parameters()),
                    model);
        }
    }

    /**
     * Makes a masked-language model with adapters, as {@link #openClassifier}.
     *
     * @param model folder of the model
     * @param adapters folder of the adapters
     * @param dtype of weights, adapters and activations
     * @throws CheckpointException as {@link #config}, or when they are those of a classifier
     * @throws IllegalArgumentException when the type is no float
     */
    public static Esm2 open(Device device, Path model, Path adapters, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (PeftEsm2 source = open(model, adapters)) {
            if (source.classifier() != null) {
                throw source.refused("a masked-language model");
            }
            return CheckpointWeights.loaded(
                    () -> new Esm2(device, source.config(), adapted(source.lora()), memory),
                    made -> source.load(made.parameters()),
                    model);
        }
    }

    /**
     * Makes a classifier without adapters, whose weights are {@code W + factor B A}, computed in FP32 and rounded once. It is as fast as one that
     * was never adapted, and {@link Esm2Checkpoint#save(Esm2Classifier, Path, SaveConfig)} saves it for transformers.
     *
     * @param model folder of the model
     * @param adapters folder of the adapters
     * @param dtype of weights and activations
     * @throws CheckpointException as {@link #config}, or when they are not those of a classifier
     * @throws IllegalArgumentException when the type is no float
     */
    public static Esm2Classifier openMergedClassifier(Device device, Path model, Path adapters, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (PeftEsm2 source = open(model, adapters)) {
            Esm2ClassifierConfig config = classifier(source);
            return CheckpointWeights.loaded(
                    () -> new Esm2Classifier(device, config, new ModelPlan(), memory),
                    made -> source.loadMerged(made.parameters()),
                    model);
        }
    }

    /**
     * Returns the folder or name of the model that adapters say they are for, {@code base_model_name_or_path}; empty where they say none.
     *
     * @throws CheckpointException when {@code adapter_config.json} cannot be read, or has something else there
     */
    public static Optional<Path> base(Path adapters) {
        return PeftConfig.read(Objects.requireNonNull(adapters, "adapters")).base();
    }

    /**
     * Writes a folder of transformers whose weights are {@code W + factor B A}, in the type of the model's: of a decoder with its tokenizer, or of
     * a classifier with its names of classes.
     *
     * @param model folder of the model
     * @param adapters folder of the adapters
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException as {@link #config}, when they are those of a masked-language model, or the folder cannot be written
     */
    public static void merge(Device device, Path model, Path adapters, Path folder) {
        SaveConfig saved = SaveConfig.standard();
        if (Models.isDecoder(Objects.requireNonNull(model, "model"))) {
            try (Decoder merged = openMergedDecoder(device, model, adapters, DecoderCheckpoint.dtype(model))) {
                DecoderCheckpoint.save(merged, folder, saved.withTokenizerFrom(model));
            }
            return;
        }
        try (Esm2Classifier merged = openMergedClassifier(device, model, adapters, Esm2Checkpoint.dtype(model))) {
            List<String> labels = labels(adapters);
            int count = merged.config().labels();
            if (!labels.isEmpty()
                    && (labels.size() != count || Set.copyOf(labels).size() != count)) {
                throw CheckpointException.ofField(
                        adapters.resolve(LABELS),
                        NAMES,
                        "expected a name of its own for each of " + count + " classes, got "
                                + CheckpointException.plain(labels.toString()));
            }
            Esm2Checkpoint.save(
                    merged,
                    folder,
                    saved.withLabels(labels.isEmpty() ? Esm2Checkpoint.labels(model) : labels)
                            .withUnusedFrom(model));
        }
    }

    /**
     * Returns the names of the classes that {@code labels.json} has beside adapters; empty where there is none.
     *
     * @throws CheckpointException when the file cannot be read, or has no name for a class
     */
    public static List<String> labels(Path adapters) {
        Path file = Objects.requireNonNull(adapters, "adapters").resolve(LABELS);
        if (Files.notExists(file)) {
            return List.of();
        }
        JsonObject json = JsonObject.read(file);
        Map<String, String> names = json.textsByName(NAMES);
        return IntStream.range(0, names.size())
                .mapToObj(i -> {
                    String name = names.get(String.valueOf(i));
                    if (name == null) {
                        throw json.refused(NAMES, "a name for each number from 0 on");
                    }
                    return name;
                })
                .toList();
    }

    private static Esm2ClassifierConfig classifier(PeftEsm2 source) {
        Esm2ClassifierConfig config = source.classifier();
        if (config == null) {
            throw source.refused("a classifier");
        }
        return config;
    }

    private static ModelPlan adapted(LoraConfig lora) {
        ModelPlan plan = new ModelPlan();
        plan.adapt(lora);
        return plan;
    }

    /**
     * Saves the adapters of a classifier, and its head where that is trained, as PEFT does. All files appear at once.
     *
     * @param lora what the model was made with
     * @param base what {@code base_model_name_or_path} says: a folder or name of the model that is adapted; null for none
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when the model has other adapters, or a parameter is split among ranks
     */
    public static void save(Esm2Classifier model, LoraConfig lora, @Nullable Path base, Path folder) {
        Esm2ClassifierConfig config = Objects.requireNonNull(model, "model").config();
        save(model, PeftModules.of(config.encoder(), config), lora, base, List.of(), folder);
    }

    /**
     * Saves the adapters of a classifier and the names of its classes, which PEFT has no place for: {@code labels.json} has them as {@code
     * id2label}.
     *
     * @param lora what the model was made with
     * @param base what {@code base_model_name_or_path} says; null for none
     * @param labels a name for each class; empty for none
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when the model has other adapters or another number of classes, or a parameter is split among ranks
     */
    public static void save(
            Esm2Classifier model, LoraConfig lora, @Nullable Path base, List<String> labels, Path folder) {
        Esm2ClassifierConfig config = Objects.requireNonNull(model, "model").config();
        if (!labels.isEmpty() && labels.size() != config.labels()) {
            throw new IllegalArgumentException(
                    "labels: expected a name for each of " + config.labels() + " classes, got " + labels);
        }
        save(model, PeftModules.of(config.encoder(), config), lora, base, labels, folder);
    }

    /**
     * Saves the adapters of a masked-language model, as {@link #save(Esm2Classifier, LoraConfig, Path, Path)}.
     *
     * @param lora what the model was made with
     * @param base what {@code base_model_name_or_path} says; null for none
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when the model has other adapters, or a parameter is split among ranks
     */
    public static void save(Esm2 model, LoraConfig lora, @Nullable Path base, Path folder) {
        save(
                model,
                PeftModules.of(Objects.requireNonNull(model, "model").config(), null),
                lora,
                base,
                List.of(),
                folder);
    }

    /**
     * Saves the adapters of a decoder, as {@link #save(Esm2Classifier, LoraConfig, Path, Path)}.
     *
     * @param lora what the model was made with
     * @param base what {@code base_model_name_or_path} says; null for none
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when the model has other adapters, or a parameter is split among ranks
     */
    public static void save(Decoder model, LoraConfig lora, @Nullable Path base, Path folder) {
        save(model, PeftModules.of(Objects.requireNonNull(model, "model").config()), lora, base, List.of(), folder);
    }

    private static void save(
            TrainedModel model,
            PeftModules modules,
            LoraConfig lora,
            @Nullable Path base,
            List<String> labels,
            Path folder) {
        List<Target> targets = modules.tensors(Objects.requireNonNull(lora, "lora"));
        check(model.parameters(), targets, modules, lora);
        CheckpointWriter.write(Objects.requireNonNull(folder, "folder"), whole -> {
            write(model.parameters(), targets, whole.resolve(PeftSource.TENSORS));
            JsonText.write(whole.resolve(PeftConfig.FILE), PeftConfig.fields(lora, modules, base));
            if (!labels.isEmpty()) {
                Map<String, @Nullable Object> names = new LinkedHashMap<>();
                for (String label : labels) {
                    names.put(String.valueOf(names.size()), label);
                }
                JsonText.write(whole.resolve(LABELS), Map.of(NAMES, names));
            }
        });
    }

    private static void check(Parameters parameters, List<Target> targets, PeftModules modules, LoraConfig lora) {
        CheckpointWeights.ensureWhole(parameters);
        for (String pattern : lora.trained()) {
            if (!pattern.equals(modules.head())) {
                throw new IllegalArgumentException(
                        "lora: expected " + (modules.head() == null ? "nothing" : modules.head())
                                + " to be trained besides, which modules_to_save can name, got " + pattern);
            }
        }
        long saved = targets.stream()
                .filter(target -> PeftModules.isAdapter(target.parameter()))
                .count();
        long present = parameters.all().stream()
                .filter(parameter -> PeftModules.isAdapter(parameter.name()))
                .count();
        boolean fits = saved == present
                && targets.stream()
                        .allMatch(target -> parameters.all().stream()
                                .filter(parameter -> parameter.name().equals(target.parameter()))
                                .anyMatch(parameter -> !PeftModules.isAdapter(parameter.name())
                                        || parameter.shape().count() == count(target)));
        if (!fits) {
            throw new IllegalArgumentException("lora: expected the adapters that the model was made with, got " + lora
                    + " of a model with " + present + " matrices of adapters");
        }
    }

    /** Returns the elements of a parameter: where ranks differ, B has columns that not all adapters have. */
    private static long count(Target target) {
        return PeftModules.isUneven(target)
                ? target.parts().stream().mapToLong(part -> part.sizes()[0]).sum() * PeftModules.columns(target)
                : target.count();
    }

    private static void write(Parameters parameters, List<Target> targets, Path file) throws IOException {
        var stream = parameters.scope().stream();
        try (Scope views = stream.device().openScope(stream)) {
            Map<String, TensorSource> all = CheckpointWriter.sources(
                    targets.stream()
                            .filter(target -> !PeftModules.isUneven(target))
                            .toList(),
                    parameters,
                    0,
                    views);
            targets.stream()
                    .filter(PeftModules::isUneven)
                    .forEach(target -> all.putAll(
                            uneven(target, parameters.get(target.parameter()).weight(), stream)));
            SafetensorsWriter.write(file, List.copyOf(all.values()), Map.of("format", "pt"));
        }
    }

    /** Returns the tensors of a B, each with the columns of its own rank. */
    private static Map<String, TensorSource> uneven(Target target, Tensor weight, Stream stream) {
        int size = weight.dtype().byteSize();
        long columns = PeftModules.columns(target);
        MemorySegment all = Arena.ofAuto().allocate(weight.byteSize(), Long.BYTES);
        weight.copyTo(stream, all);
        stream.synchronize();
        Map<String, TensorSource> sources = new TreeMap<>();
        long row = 0;
        for (Part part : target.parts()) {
            long rows = part.sizes()[0];
            long bytes = part.sizes()[1] * size;
            MemorySegment own = MemorySegment.ofArray(new byte[Math.toIntExact(rows * bytes)]);
            for (long i = 0; i < rows; i++) {
                MemorySegment.copy(all, (row + i) * columns * size, own, i * bytes, bytes);
            }
            row += rows;
            TensorSpec spec = new TensorSpec(part.tensor(), weight.dtype(), Shape.of(part.sizes()));
            sources.put(part.tensor(), TensorSource.of(spec, own));
        }
        return sources;
    }
}
