package dev.chagres.models.huggingface;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.TensorSource;
import dev.chagres.layer.GeluForm;
import dev.chagres.models.esm.ContactPredictor;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Base;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;

/**
 * ESM-2 in and out of folders of transformers: {@code EsmForMaskedLM}, {@code EsmModel}, {@code EsmForTokenClassification} and {@code
 * EsmForSequenceClassification}.
 *
 * <p>In: {@code config.json}, and {@code model.safetensors} or the files that {@code model.safetensors.index.json} names. Fields that say
 * something that this ESM-2 does not compute are refused, and so are tensors that it does not have. Names, types and shapes of all tensors are
 * checked before a model is made.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code EsmConfig}, {@code EsmForMaskedLM} and {@code EsmTokenizer} of transformers 5.17.
 */
public final class Esm2Checkpoint {
    private Esm2Checkpoint() {}

    /**
     * Returns sizes and form of the model in a folder, whose files are checked.
     *
     * @throws CheckpointException when a file cannot be read, or has a model that is not supported; file and field or tensor are named
     * @throws dev.chagres.io.SafetensorsException when a safetensors file is damaged
     */
    public static Esm2Config config(Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            return source.config();
        }
    }

    /**
     * Returns the type that the weights in a folder were saved in.
     *
     * @throws CheckpointException as {@link #config}
     */
    public static DType dtype(Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            return source.dtype();
        }
    }

    /**
     * Returns sizes, form and classes of the classifier in a folder, whose files are checked.
     *
     * @throws CheckpointException as {@link #config}, or when the folder has no classifier
     */
    public static Esm2ClassifierConfig classifierConfig(Path folder) {
        try (Esm2Source source = classifier(folder)) {
            return source.classifier();
        }
    }

    /**
     * Returns the names of the classes of a classifier in a folder; empty where it has another head.
     *
     * @throws CheckpointException as {@link #config}
     */
    public static List<String> labels(Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            return source.architecture().task() == null ? List.of() : source.labelNames();
        }
    }

    /**
     * Makes the model in a folder; its context is {@code max_position_embeddings}.
     *
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16, to which the file's numbers are rounded
     * @throws CheckpointException as {@link #config}, or when the folder has another head
     * @throws IllegalArgumentException when the type is no float
     */
    public static Esm2 open(Device device, Path folder, DType dtype) {
        return open(device, folder, UnaryOperator.identity(), CheckpointWeights.memory(device, dtype));
    }

    /**
     * Makes the same to evaluate it: its parameters are frozen, so that there is no memory for gradients.
     *
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16, to which the file's numbers are rounded
     * @param context longest sequence in tokens
     * @throws CheckpointException as {@link #open}
     * @throws IllegalArgumentException when the type is no float, or the context is below 1
     */
    public static Esm2 openFrozen(Device device, Path folder, DType dtype, int context) {
        return open(device, folder, config -> config.withContext(context), CheckpointWeights.frozen(device, dtype));
    }

    private static Esm2 open(
            Device device, Path folder, UnaryOperator<Esm2Config> chosen, Function<ModelPlan, Parameters> memory) {
        try (Esm2Source source = maskedLm(folder)) {
            Esm2Config config = chosen.apply(source.config());
            return CheckpointWeights.loaded(
                    () -> new Esm2(device, config, new ModelPlan(), memory),
                    model -> source.load(model.parameters()),
                    folder);
        }
    }

    /**
     * Makes the model without a head in a folder, whose pooler is there where an {@code EsmModel} has one; of a folder with a head it leaves that
     * out. Its context is {@code max_position_embeddings}.
     *
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16, to which the file's numbers are rounded
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the type is no float
     */
    public static Esm2Base openBase(Device device, Path folder, DType dtype) {
        return openBase(device, folder, dtype, Optional.empty());
    }

    /**
     * Makes the same with another context.
     *
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16, to which the file's numbers are rounded
     * @param context longest sequence in tokens
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the type is no float, or the context is below 1
     */
    public static Esm2Base openBase(Device device, Path folder, DType dtype, int context) {
        return openBase(device, folder, dtype, Optional.of(context));
    }

    private static Esm2Base openBase(Device device, Path folder, DType dtype, Optional<Integer> context) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            Esm2Config config = context.map(source.config()::withContext).orElse(source.config());
            return CheckpointWeights.loaded(
                    () -> new Esm2Base(device, config, source.pooler(), memory),
                    model -> source.loadBase(model.parameters()),
                    folder);
        }
    }

    /**
     * Makes the classifier in a folder; its context is {@code max_position_embeddings}.
     *
     * @param dtype of weights and activations: FLOAT32, BFLOAT16 or FLOAT16, to which the file's numbers are rounded
     * @throws CheckpointException as {@link #config}, or when the folder has no classifier
     * @throws IllegalArgumentException when the type is no float
     */
    public static Esm2Classifier openClassifier(Device device, Path folder, DType dtype) {
        Function<ModelPlan, Parameters> memory = CheckpointWeights.memory(device, dtype);
        try (Esm2Source source = classifier(folder)) {
            return CheckpointWeights.loaded(
                    () -> new Esm2Classifier(device, source.classifier(), new ModelPlan(), memory),
                    model -> source.load(model.parameters()),
                    folder);
        }
    }

    private static Esm2Source maskedLm(Path folder) {
        return ensured(folder, EsmArchitecture.MASKED_LM, EsmArchitecture.NV_MASKED_LM);
    }

    private static Esm2Source classifier(Path folder) {
        return ensured(folder, EsmArchitecture.TOKENS, EsmArchitecture.SEQUENCES);
    }

    private static Esm2Source ensured(Path folder, EsmArchitecture... expected) {
        return CheckpointWeights.orClosed(
                Esm2Source.open(Objects.requireNonNull(folder, "folder")), source -> source.ensure(expected));
    }

    /**
     * Copies the weights in a folder into a model, such as one that a trainer has made of {@link #config}.
     *
     * @param model on one rank, with whole parameters
     * @throws CheckpointException as {@link #config}, or when the folder has another head
     * @throws IllegalArgumentException when the model has other sizes or another form than the folder's, but for the context, or a parameter
     *     is split among ranks
     */
    public static void load(Esm2 model, Path folder) {
        try (Esm2Source source = maskedLm(folder)) {
            ensureLike(Objects.requireNonNull(model, "model").config(), source, folder);
            CheckpointWeights.ensureWhole(model);
            source.load(model.parameters());
        }
    }

    /**
     * Copies the weights of an {@code EsmForMaskedLM} to where ranks keep them: each of several ranks calls it with the weights that it trains
     * together with the others. Rank 0 reads the folder and sends the others their parts, tensor by tensor in pieces.
     *
     * @param weights alone, of a model of {@link #config}
     * @throws CheckpointException as {@link #config}, or when the folder has another head
     * @throws IllegalArgumentException on rank 0, when the weights are those of another model
     * @throws IllegalStateException when this is more than weights, or rank 0 failed
     */
    public static void load(RunState weights, Path folder) {
        Objects.requireNonNull(weights, "weights");
        try (Esm2Source source = maskedLm(folder)) {
            source.load(weights);
        }
    }

    /**
     * Copies the weights in a folder to where ranks keep them, as {@link #load(RunState, Path)} does, of a model that a run fine-tunes: low-rank
     * adapters stay as they are, and so does the head of a classifier where the folder has an {@code EsmForMaskedLM} or {@code EsmModel}.
     *
     * @param weights alone
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException on rank 0, when the weights are those of another model
     * @throws IllegalStateException when this is more than weights, or rank 0 failed
     */
    public static void begin(RunState weights, Path folder) {
        Objects.requireNonNull(weights, "weights");
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            source.begin(weights);
        }
    }

    /**
     * Copies the weights in a folder into a classifier. Of {@code EsmForMaskedLM} and {@code EsmModel} these are all but the classifier's head, which stays as it
     * is: so a classifier begins with a trained model.
     *
     * @param model on one rank, with whole parameters
     * @throws CheckpointException as {@link #config}
     * @throws IllegalArgumentException when the model has other sizes, another form or another head than the folder's, but for the context,
     *     or a parameter is split among ranks
     */
    public static void load(Esm2Classifier model, Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            Esm2ClassifierConfig own = Objects.requireNonNull(model, "model").config();
            ensureLike(own.encoder(), source, folder);
            CheckpointWeights.ensureWhole(model);
            if (source.architecture().task() == null) {
                source.loadEncoder(model.parameters());
                return;
            }
            Esm2ClassifierConfig theirs = source.classifier();
            if (own.task() != theirs.task() || own.labels() != theirs.labels() || own.problem() != theirs.problem()) {
                throw new IllegalArgumentException(
                        "model: expected " + text(theirs) + " as in " + folder + ", got " + text(own));
            }
            source.load(model.parameters());
        }
    }

    private static String text(Esm2ClassifierConfig config) {
        return config.labels() + " classes of " + config.task()
                + (config.problem() == Esm2ClassifierConfig.Problem.SINGLE_LABEL ? "" : ", " + config.problem());
    }

    private static void ensureLike(Esm2Config own, Esm2Source source, Path folder) {
        Esm2Config theirs = source.config().withContext(own.context()).withRecomputation(own.recomputation());
        if (!own.equals(theirs)) {
            throw new IllegalArgumentException(
                    "model: expected sizes and form of " + folder + ", " + theirs + ", got " + own);
        }
    }

    /**
     * Returns how transformers finds a model in a folder, so that checkpoints of a run are such folders, too.
     *
     * @param dtype of the weights
     * @return empty if transformers computes something else: the model has another GELU than {@code EsmForMaskedLM}
     */
    public static Optional<ModelFiles> files(Esm2Config config, DType dtype) {
        CheckpointWeights.ensureFloat(dtype);
        return Esm2Files.areOf(Objects.requireNonNull(config, "config"))
                ? Optional.of(new Esm2Files(config, dtype, EsmLayout.TRANSFORMERS))
                : Optional.empty();
    }

    /**
     * Returns the same of a classifier.
     *
     * @param dtype of the weights
     * @return empty if transformers computes something else
     */
    public static Optional<ModelFiles> files(Esm2ClassifierConfig config, DType dtype) {
        CheckpointWeights.ensureFloat(dtype);
        return Esm2Files.areOf(Objects.requireNonNull(config, "config").encoder())
                ? Optional.of(new Esm2Files(config, List.of(), dtype))
                : Optional.empty();
    }

    /**
     * Returns the regression of the contact head in a folder.
     *
     * @throws CheckpointException as {@link #config}, or when the folder has no contact head, or one of another shape
     */
    public static ContactPredictor.Regression contactHead(Path folder) {
        try (Esm2Source source = Esm2Source.open(Objects.requireNonNull(folder, "folder"))) {
            return source.contactHead();
        }
    }

    /**
     * Saves a model as transformers does: {@code config.json}, the tensors, and the files of the tokenizer, so that its {@code
     * AutoModelForMaskedLM} and {@code AutoTokenizer} open the folder. The tied decoder is left out. All files appear at once.
     *
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when a parameter is split among ranks, or the model has another GELU than {@code EsmForMaskedLM}: {@link
     *     dev.chagres.layer.GeluForm#TANH}
     */
    public static void save(Esm2 model, Path folder, SaveConfig config) {
        Objects.requireNonNull(folder, "folder");
        CheckpointWeights.ensureWhole(Objects.requireNonNull(model, "model"));
        save(
                new Esm2Files(model.config(), model.parameters().dtype(), config.layout()),
                model.parameters(),
                folder,
                config);
    }

    private static void save(Esm2Files files, Parameters parameters, Path folder, SaveConfig config) {
        files.ensureForm();
        if (config.unusedFrom().isEmpty()) {
            CheckpointWriter.write(folder, files, parameters, Map.of(), config.shardBytes());
            return;
        }
        try (Esm2Source other = Esm2Source.open(config.unusedFrom().get())) {
            Map<String, TensorSource> unused = files.isNvidia() ? Map.of() : other.unused(files::named);
            CheckpointWriter.write(folder, files, parameters, unused, config.shardBytes());
        }
    }

    /**
     * Saves a model without a head as transformers does, so that its {@code AutoModel} opens the folder.
     *
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when the model has another GELU than transformers' ESM: {@link dev.chagres.layer.GeluForm#TANH}
     */
    public static void save(Esm2Base model, Path folder, SaveConfig config) {
        Objects.requireNonNull(folder, "folder");
        Objects.requireNonNull(model, "model");
        save(
                new Esm2Files(model.config(), model.pooler(), model.parameters().dtype()),
                model.parameters(),
                folder,
                config);
    }

    /**
     * Writes the model of a folder to another one, in another layout or the same. Where that computes another function, the numbers change: {@link
     * #changes} says in what.
     *
     * @param from as {@link #open} takes it
     * @param to a folder that does not exist, or is empty; its parent exists
     * @throws CheckpointException as {@link #open} and {@link #save(Esm2, Path, SaveConfig)}
     */
    public static void convert(Device device, Path from, Path to, SaveConfig config) {
        Objects.requireNonNull(to, "to");
        Objects.requireNonNull(config, "config");
        try (Esm2Source source = maskedLm(from)) {
            Esm2Config target = inLayout(source.config(), config.layout());
            Function<ModelPlan, Parameters> memory = CheckpointWeights.frozen(device, source.dtype());
            try (Esm2 model = CheckpointWeights.loaded(
                    () -> new Esm2(device, target, new ModelPlan(), memory),
                    made -> source.load(made.parameters()),
                    from)) {
                save(model, to, config);
            }
        }
    }

    /** Returns the same sizes with the GELUs that a layout's model computes. */
    public static Esm2Config inLayout(Esm2Config config, EsmLayout layout) {
        return config.withForm(config.form().withGelus(layout.isNvidia() ? GeluForm.TANH : GeluForm.ERF, GeluForm.ERF));
    }

    /**
     * Returns what a model computes otherwise once it is saved in a layout, a sentence each; nothing where it computes the same.
     *
     * @param config of the model before
     */
    public static List<String> changes(Esm2Config config, EsmLayout layout) {
        Esm2Config after = inLayout(config, layout);
        List<String> all = new ArrayList<>();
        if (after.form().gelu() != config.form().gelu()) {
            all.add("its layers compute the GELU by " + after.form().gelu() + " instead of "
                    + config.form().gelu());
        }
        if (after.form().headGelu() != config.form().headGelu()) {
            all.add("its head computes the GELU by " + after.form().headGelu() + " instead of "
                    + config.form().headGelu());
        }
        List<Double> frequencies = config.form().frequencies();
        boolean computed = IntStream.range(0, frequencies.size())
                .allMatch(i -> Math.abs(frequencies.get(i) * Math.pow(10_000, 2.0 * i / config.headDim()) - 1) < 1e-6);
        if (layout.isNvidia() && !computed) {
            all.add("frequencies of the rotation are computed instead of those of the folder");
        }
        return all;
    }

    /**
     * Saves a classifier as transformers does, as {@link #save(Esm2, Path, SaveConfig)}. Labels have the names LABEL_0 and so on.
     *
     * @param folder one that does not exist, or is empty; its parent exists
     * @throws CheckpointException when the folder has files or cannot be written
     * @throws IllegalArgumentException when a parameter is split among ranks, or the model has another GELU than transformers' ESM: {@link
     *     dev.chagres.layer.GeluForm#TANH}
     */
    public static void save(Esm2Classifier model, Path folder, SaveConfig config) {
        Objects.requireNonNull(folder, "folder");
        CheckpointWeights.ensureWhole(Objects.requireNonNull(model, "model"));
        save(
                new Esm2Files(
                        model.config(), config.labels(), model.parameters().dtype()),
                model.parameters(),
                folder,
                config);
    }
}
