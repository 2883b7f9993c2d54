package dev.chagres.trainer.finetune;

import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TrainedModel;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.NativeException;
import dev.chagres.io.SafetensorsException;
import dev.chagres.models.data.FastaException;
import dev.chagres.models.data.UnknownLetters;
import dev.chagres.models.esm.Esm2Classifier;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.PeftAdapters;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.trainer.TrainingException;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.FastaOptions;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Fine-tunes an ESM-2 in a folder of transformers on labelled sequences: classes or a number of sequences, or classes of their residues, as a
 * whole, in part, or by low-rank adapters. Saves the best evaluated state as a folder that transformers or PEFT opens.
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
            "Of tokens a label has a letter for each residue; of multi-label, semicolons between classes.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class FineTune implements Callable<Integer> {
    private static final int DONE = 0;
    private static final int FAILED = 1;

    private final PrintStream out;
    private final PrintStream err;

    @Option(names = "--model", required = true, paramLabel = "FOLDER", description = "an ESM-2 of transformers")
    private Path model = Path.of("");

    @Option(
            names = "--task",
            required = true,
            converter = Predicted.Words.class,
            paramLabel = "NAME",
            description = "classification, multi-label or regression of sequences; tokens: classification of residues")
    private Predicted predicted = Predicted.CLASSIFICATION;

    @Option(
            names = "--standardize",
            description = "of regression: learn (label - mean) / deviation; the saved folder's targets.json has both")
    private boolean standardize;

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
                    "train low-rank adapters and the head: r=16,alpha=32,dropout=0.05,target=query,value. Targets:"
                            + " query, key, value, projection, fc1, fc2 (default: query,value); scaling=rank or root")
    private @Nullable LoraConfig lora;

    @Option(
            names = "--frozen",
            paramLabel = "SPEC",
            description = "trunk: train the head alone; last-n=2: train the last two layers and the head")
    private @Nullable String frozen;

    @Option(
            names = "--unknown",
            converter = FastaOptions.OfUnknown.class,
            paramLabel = "refuse|unk|skip",
            description =
                    "what becomes of letters that the vocabulary lacks: the file is refused, they become <unk>, or their sequences are"
                            + " left out, and so are their labels (default: refuse)")
    private UnknownLetters unknown = UnknownLetters.REFUSE;

    @Mixin
    private TuningOptions options = new TuningOptions();

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
        LabelledProteins training = LabelledProteins.read("--train", train, trainLabels, predicted, unknown);
        LabelledProteins held = LabelledProteins.read("--eval", eval, evalLabels, predicted, unknown);
        TaskLabels labels = labels(training);
        options.ensureHas(labels.predictions().metrics(), predicted);
        LabelledSequences trained = training.labelled("--train", labels);
        LabelledSequences evaluated = held.labelled("--eval", labels);
        BatchShape shape = options.shape(Math.max(training.longest(), held.longest()));
        var config = new Esm2ClassifierConfig(
                Esm2Checkpoint.config(model).withContext(shape.context()),
                predicted.task(),
                labels.count(),
                predicted.problem());
        int steps = options.steps(trained, shape);
        out.println(training + ", " + held + ", "
                + (predicted == Predicted.REGRESSION ? "a number each" : labels.count() + " labels") + "; " + steps
                + " steps");
        try (var run = new TuningRun(model, chosen(config, labels.factory(config)), labels, options, out)) {
            run.train(trained, evaluated, shape, steps, lora == null ? 1e-4f : 1e-3f);
            run.write(save, (classifier, folder) -> save(classifier, labels.names(), folder));
        }
    }

    private void check() {
        if (lora != null && frozen != null) {
            throw new IllegalArgumentException("--frozen: expected none beside --lora, which freezes all but the head");
        }
        if (standardize && predicted != Predicted.REGRESSION) {
            throw new IllegalArgumentException(
                    "--standardize: expected --task regression, got " + EnumOption.word(predicted));
        }
        options.check();
        if (Files.exists(save)) {
            throw new IllegalArgumentException(
                    "--save: expected a new folder, got " + save + ", which is there already");
        }
    }

    /** Returns what labels say, as a head in the folder has learned it where there is one. */
    private TaskLabels labels(LabelledProteins training) {
        List<String> own = Esm2Checkpoint.labels(model);
        if (!own.isEmpty()) {
            Predicted theirs = Predicted.of(Esm2Checkpoint.classifierConfig(model));
            if (theirs != predicted) {
                throw new DataException("--task: expected that of the classifier in " + model + ", "
                        + EnumOption.word(theirs) + ", got " + EnumOption.word(predicted));
            }
        }
        return predicted == Predicted.REGRESSION
                ? new NumberLabels(scale(own, training))
                : new ClassLabels(predicted, own, training);
    }

    private TargetScale scale(List<String> own, LabelledProteins training) {
        if (own.isEmpty()) {
            return standardize
                    ? TargetScale.of(training.rows().stream()
                            .mapToDouble(row -> NumberLabels.number("--train", row))
                            .toArray())
                    : TargetScale.PLAIN;
        }
        if (own.size() != 1) {
            throw new DataException("--model: expected a regression of one number, got one of " + own.size());
        }
        TargetScale theirs = TargetScale.read(model);
        if (standardize && theirs.equals(TargetScale.PLAIN)) {
            throw new DataException("--standardize: expected " + TargetScale.FILE + " in " + model
                    + ", whose head predicts numbers, got none; leave the option out");
        }
        return theirs;
    }

    private TrainedModel.Factory chosen(Esm2ClassifierConfig config, TrainedModel.Factory factory) {
        LoraConfig adapters = lora;
        if (adapters != null) {
            return factory.adapted(adapters);
        }
        String choice = frozen;
        if (choice == null) {
            return factory;
        }
        if (choice.equals("trunk")) {
            return factory.training(config.lastLayers(0));
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
        return factory.training(config.lastLayers(count));
    }

    private void save(Esm2Classifier classifier, List<String> names, Path folder) {
        LoraConfig adapters = lora;
        if (adapters != null) {
            PeftAdapters.save(classifier, adapters, model, folder);
        } else {
            Esm2Checkpoint.save(classifier, folder, SaveConfig.standard().withLabels(names));
        }
    }
}
