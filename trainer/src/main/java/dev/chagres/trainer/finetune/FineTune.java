package dev.chagres.trainer.finetune;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.NativeException;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.data.FastaException;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.TrainingException;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.finetune.BestModel.Metric;
import dev.chagres.trainer.finetune.LabelledProteins.Numbered;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;
import picocli.CommandLine.TypeConversionException;

/**
 * Fine-tunes an ESM-2 in a folder of transformers on labelled sequences: a classifier of sequences or of their residues, as a whole, in part,
 * or by low-rank adapters. Saves the best evaluated state as a folder that transformers or PEFT opens.
 *
 * <p>Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "finetune",
        mixinStandardHelpOptions = true,
        sortOptions = false,
        description = "Fine-tunes an ESM-2 in a folder of transformers on labelled protein sequences.",
        footer = {
            "",
            "Data: CSV with the columns sequence and label, or FASTA and a file with a label a line.",
            "Of tokens a label has a letter for each residue.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class FineTune implements Callable<Integer> {
    private static final int DONE = 0;
    private static final int FAILED = 1;
    private static final int MULTIPLE = 16;

    /** What is predicted. */
    enum Predicted {
        CLASSIFICATION(Task.SEQUENCES),
        TOKENS(Task.TOKENS);

        private final Task task;

        Predicted(Task task) {
            this.task = task;
        }
    }

    /** Reads a word of an enum in lower case with hyphens. */
    private abstract static class Words<E extends Enum<E>> implements ITypeConverter<E> {
        private final E[] constants;

        Words(Class<E> type) {
            constants = type.getEnumConstants();
        }

        @Override
        public E convert(String value) {
            List<String> words = Arrays.stream(constants)
                    .map(each -> each.name().toLowerCase(Locale.ROOT).replace('_', '-'))
                    .toList();
            int index = words.indexOf(value.toLowerCase(Locale.ROOT));
            if (index < 0) {
                throw new TypeConversionException(
                        "expected one of " + String.join(", ", words) + ", got " + ForeignText.plain(value));
            }
            return constants[index];
        }
    }

    /** Reads {@code --task}. */
    static final class TaskWords extends Words<Predicted> {
        TaskWords() {
            super(Predicted.class);
        }
    }

    /** Reads {@code --metric}. */
    static final class MetricWords extends Words<Metric> {
        MetricWords() {
            super(Metric.class);
        }
    }

    private final PrintStream out;
    private final PrintStream err;

    @Option(names = "--model", required = true, paramLabel = "FOLDER", description = "an ESM-2 of transformers")
    private Path model = Path.of("");

    @Option(
            names = "--task",
            required = true,
            converter = TaskWords.class,
            paramLabel = "NAME",
            description = "classification of sequences, or tokens: classification of residues")
    private Predicted predicted = Predicted.CLASSIFICATION;

    @Option(names = "--train", required = true, paramLabel = "FILE", description = "CSV or FASTA to train on")
    private Path train = Path.of("");

    @Option(names = "--train-labels", paramLabel = "FILE", description = "labels of a FASTA file, one a line")
    private @Nullable Path trainLabels;

    @Option(names = "--eval", required = true, paramLabel = "FILE", description = "CSV or FASTA to evaluate on")
    private Path eval = Path.of("");

    @Option(names = "--eval-labels", paramLabel = "FILE", description = "labels of a FASTA file, one a line")
    private @Nullable Path evalLabels;

    @Option(
            names = "--save",
            required = true,
            paramLabel = "FOLDER",
            description = "a new folder: of transformers, with --lora of PEFT")
    private Path save = Path.of("");

    @Option(
            names = "--lora",
            converter = LoraOption.class,
            paramLabel = "SPEC",
            description =
                    "train low-rank adapters and the head: r=16,alpha=32,dropout=0.05,target=query,value. Targets: query, key,"
                            + " value, projection, fc1, fc2 (default: query,value); scaling=rank or root")
    private @Nullable LoraConfig lora;

    @Option(
            names = "--frozen",
            paramLabel = "SPEC",
            description = "trunk: train the head alone; last-n=2: train the last two layers and the head")
    private @Nullable String frozen;

    @Option(names = "--epochs", paramLabel = "N", description = "times that the data are read (default: 3)")
    private int epochs = 3;

    @Option(names = "--learning-rate", paramLabel = "R", description = "highest rate (default: 1e-4; with --lora 1e-3)")
    private @Nullable Float learningRate;

    @Option(names = "--tokens-per-step", paramLabel = "N", description = "tokens of a step (default: 4096)")
    private int tokens = 4096;

    @Option(
            names = "--context",
            paramLabel = "N",
            description = "longest sequence, with both ends; of longer ones the first residues count (default: 1024)")
    private int context = 1024;

    @Option(
            names = "--metric",
            converter = MetricWords.class,
            paramLabel = "NAME",
            description = "chooses the best evaluation: loss, accuracy, macro-f1, matthews (default: loss)")
    private Metric metric = Metric.LOSS;

    @Option(
            names = "--patience",
            paramLabel = "N",
            description = "end after so many evaluations that are not better (default: 0: never)")
    private int patience;

    @Option(names = "--eval-every", paramLabel = "N", description = "steps between evaluations (default: an epoch)")
    private int every;

    @Option(names = "--ranks", paramLabel = "N", description = "devices of this host that train together (default: 1)")
    private int ranks = 1;

    @Option(
            names = "--seed",
            paramLabel = "N",
            description = "of the head's first weights, and the data's order (default: 0)")
    private long seed;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    FineTune(PrintStream out, PrintStream err) {
        this.out = out;
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Runs the command and returns its exit status. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new FineTune(out, err), out, err, arguments);
    }

    @Override
    public Integer call() throws InterruptedException {
        try {
            fineTune();
            return DONE;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        } catch (FastaException
                | TrainingException
                | DataException
                | CheckpointException
                | SafetensorsException
                | UncheckedIOException
                | NativeException e) {
            err.println("finetune: " + ForeignText.lines(String.valueOf(e.getMessage())));
            return FAILED;
        }
    }

    private void fineTune() throws InterruptedException {
        check();
        LabelledProteins training = LabelledProteins.read("--train", train, trainLabels, predicted.task);
        LabelledProteins held = LabelledProteins.read("--eval", eval, evalLabels, predicted.task);
        List<String> own = Esm2Checkpoint.labels(model);
        List<String> classes = own.isEmpty() ? training.classes() : own;
        if (classes.size() < 2) {
            throw new DataException("--train: expected two labels or more, got " + classes);
        }
        Numbered trained = training.numbered("--train", classes);
        Numbered evaluated = held.numbered("--eval", classes);
        int longest = Math.min(context, Math.max(training.longest(), held.longest()));
        int budget = rounded(Math.max(tokens, longest * ranks));
        BatchShape shape = new BatchShape(BatchLayout.PACKED, budget, longest, ranks);
        Esm2ClassifierConfig config = config(classes.size(), longest);
        Predictions predictions = new Predictions(classes.size());
        TrainedModel.Factory factory = chosen(config);
        int steps = steps(trained, shape);
        out.println(training + ", " + held + ", " + classes.size() + " labels; " + steps + " steps");
        try {
            Path state = Files.createTempFile("chagres-finetune-", ".safetensors");
            try {
                run(factory, shape, predictions, trained, evaluated, steps, state);
                write(factory, state, classes);
            } finally {
                Files.deleteIfExists(state);
            }
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private void check() {
        if (lora != null && frozen != null) {
            throw new IllegalArgumentException("--frozen: expected none beside --lora, which freezes all but the head");
        }
        for (var number : List.of(
                new Number("--epochs", epochs, 1),
                new Number("--tokens-per-step", tokens, MULTIPLE),
                new Number("--context", context, 3),
                new Number("--patience", patience, 0),
                new Number("--eval-every", every, 0),
                new Number("--ranks", ranks, 1))) {
            if (number.value < number.least) {
                throw new IllegalArgumentException(
                        number.option + ": expected at least " + number.least + ", got " + number.value);
            }
        }
        if (Files.exists(save)) {
            throw new IllegalArgumentException(
                    "--save: expected a new folder, got " + save + ", which is there already");
        }
    }

    private record Number(String option, int value, int least) {}

    private static int rounded(int count) {
        return Math.ceilDiv(count, MULTIPLE) * MULTIPLE;
    }

    private Esm2ClassifierConfig config(int labels, int longest) {
        Esm2Config encoder = Esm2Checkpoint.config(model).withContext(longest);
        if (!Esm2Checkpoint.labels(model).isEmpty()) {
            Esm2ClassifierConfig own = Esm2Checkpoint.classifierConfig(model);
            if (own.task() != predicted.task) {
                throw new DataException("--task: expected that of the classifier in " + model + ", "
                        + own.task().name().toLowerCase(Locale.ROOT) + ", got "
                        + predicted.name().toLowerCase(Locale.ROOT));
            }
        }
        return new Esm2ClassifierConfig(encoder, predicted.task, labels);
    }

    private TrainedModel.Factory chosen(Esm2ClassifierConfig config) {
        LoraConfig adapters = lora;
        if (adapters != null) {
            return config.adapted(adapters);
        }
        String choice = frozen;
        if (choice == null) {
            return config;
        }
        if (choice.equals("trunk")) {
            return config.training(config.lastLayers(0));
        }
        if (!choice.matches("last-n=\\d{1,5}")) {
            throw new IllegalArgumentException(
                    "--frozen: expected trunk, or last-n=2 or another number, got " + ForeignText.plain(choice));
        }
        int count = Integer.parseInt(choice.substring("last-n=".length()));
        if (count > config.encoder().layers()) {
            throw new IllegalArgumentException(
                    "--frozen: expected last-n of at most " + config.encoder().layers() + " layers, got " + count);
        }
        return config.training(config.lastLayers(count));
    }

    /** Packs the data once. */
    private int steps(Numbered data, BatchShape shape) {
        int steps = 0;
        Batch batch = new Batch(shape);
        try (TokenSequences all = data.epochs(epochs, seed);
                var packer = new SequencePacker(shape, all)) {
            while (packer.fill(batch)) {
                steps++;
            }
        }
        return steps;
    }

    private static DType dtype() {
        return Provider.current() == Provider.CUDA ? DType.BFLOAT16 : DType.FLOAT32;
    }

    private void run(
            TrainedModel.Factory factory,
            BatchShape shape,
            Predictions predictions,
            Numbered trained,
            Numbered evaluated,
            int steps,
            Path state)
            throws InterruptedException {
        float usual = lora == null ? 1e-4f : 1e-3f;
        float rate = learningRate == null ? usual : learningRate;
        int warmUp = Math.max(1, steps / 20);
        int between = every == 0 ? Math.max(1, steps / epochs) : every;
        BatchShape one = new BatchShape(shape.layout(), rounded(shape.context()), shape.context());
        BestModel best = new BestModel(state, metric, patience, predictions, out);
        Trainer.of(predictions.counting(factory), shape)
                .withDtype(dtype())
                .withSeed(seed)
                .withRanks(ranks)
                .withOptimizer(new AdamW.Config(0.9f, 0.999f, 1e-8f, 0.01f), 1)
                .withSchedule(new LearningRateSchedule(
                        rate, warmUp, Math.max(warmUp, steps), LearningRateSchedule.Decay.LINEAR, 0))
                .withStart(weights -> Esm2Checkpoint.begin(weights, model))
                .withEvaluation(Evaluation.of(evaluated::once, one).withEvery(between))
                .withCallback(best)
                .train(() -> trained.epochs(epochs, seed), steps);
        String text = best.best();
        if (text == null) {
            throw new DataException("no evaluation has given a number; lower --learning-rate");
        }
        out.println("saved: " + text);
    }

    /** Writes the folder on one device, from the best state. */
    private void write(TrainedModel.Factory factory, Path state, List<String> classes) {
        try (Device device = Device.open();
                TrainedModel made = factory.make(
                        device, new ModelPlan(), plan -> Parameters.allocate(device, plan, dtype(), seed))) {
            RunState.of(made.parameters()).load(state);
            Esm2Classifier classifier = (Esm2Classifier) made;
            LoraConfig adapters = lora;
            if (adapters != null) {
                PeftAdapters.save(classifier, adapters, model, save);
            } else {
                Esm2Checkpoint.save(classifier, save, SaveConfig.standard().withLabels(classes));
            }
        }
    }
}
