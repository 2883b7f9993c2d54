package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Provider;
import dev.chagres.io.SafetensorsException;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.huggingface.CheckpointException;
import dev.chagres.models.huggingface.Models;
import dev.chagres.models.text.TextSource;
import dev.chagres.trainer.callback.Evaluation;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.FastaOptions;
import dev.chagres.trainer.command.FileChecks;
import dev.chagres.trainer.command.HeldOutOption;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Evaluates the model of a file that {@code train --save} has written, or of a folder of Hugging Face: loss, perplexity and accuracy of the masked
 * residues of a FASTA file, or loss and perplexity of a decoder on text.
 *
 * <p>Exit statuses: 0 done; 1 the data, the file or the machine failed, told in one line; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "evaluate",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Evaluates an ESM-2, or a decoder on text, of train --save or of a folder of Hugging Face.",
        footer = {
            "",
            "With --resume, model, recipe and context are those of the run that wrote",
            "the file.",
            "A protein has the same masks in each evaluation. Of text each token counts",
            "but the first, of pairs and chats the completions and answers alone.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Evaluate implements Callable<Integer> {
    private static final int DONE = 0;
    private static final int FAILED = 1;

    /** What the file says of its run, and the options of {@code train} that take it. */
    private static final Map<String, String> TAKEN =
            Map.of("model", "--model", "recipe", "--recipe", "seed", "--seed", "context", "--context");

    private final Platform.Opener opener;
    private final PrintStream out;
    private final PrintStream err;

    @Option(
            names = "--resume",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description = "the file that train --save has written")
    private @Nullable Path resume;

    @Option(
            names = "--model",
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description =
                    "the ESM-2, or with --text the decoder, in a folder of Hugging Face; beside --resume, the folder that its run began with, where that has another"
                            + " place now")
    private @Nullable Path model;

    @Option(
            names = "--context",
            paramLabel = "N",
            description = "with --model alone: longest sequence in tokens (default: 1024)")
    private @Nullable Integer context;

    @Mixin
    private final FastaOptions fasta = new FastaOptions();

    @Option(
            names = "--text",
            arity = "1..*",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description = "evaluate a decoder on these texts, which train --text reads, too (default: none)")
    private List<Path> texts = List.of();

    @Option(
            names = "--eval-fraction",
            converter = HeldOutOption.class,
            paramLabel = "R",
            description =
                    "evaluate only those sequences that a run with this --eval-fraction has held out of --fasta or --text (default: all)")
    private @Nullable HeldOut heldOut;

    @Option(
            names = "--ranks",
            paramLabel = "N",
            description = "devices of this host that evaluate together (default: 1)")
    private int ranks = 1;

    @Option(
            names = "--report",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE",
            description = "write a JSON object of a line: the evaluation")
    private @Nullable Path report;

    @Option(
            names = "--provider",
            converter = OptionWords.OfProvider.class,
            paramLabel = "NAME",
            description = "cuda, reference or auto: cuda where there is an NVIDIA driver (default: auto)")
    private TrainOptions.@Nullable ProviderChoice provider;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    Evaluate(Platform.Opener opener, PrintStream out, PrintStream err) {
        this.opener = opener;
        this.out = out;
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        var out = new StandardOutput(new FileOutputStream(FileDescriptor.out), System.out.charset());
        int status = run(DevicePlatform.opener(), out.text(), System.err, arguments);
        String failure = out.newFailure();
        if (status == DONE && failure != null) {
            System.err.println("evaluate: " + failure);
            status = FAILED;
        }
        System.exit(status);
    }

    /** Runs the command and returns its exit status. */
    static int run(Platform.Opener opener, PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new Evaluate(opener, out, err), out, err, arguments);
    }

    @Override
    public Integer call() {
        try {
            evaluate();
            return DONE;
        } catch (IllegalArgumentException | TrainingException.WrongOption e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        } catch (CheckpointException e) {
            err.println("evaluate: --model: " + ForeignText.lines(String.valueOf(e.getMessage())));
            return FAILED;
        } catch (TrainingException e) {
            err.println("evaluate: " + e.getMessage());
            return FAILED;
        }
    }

    private void check() {
        if (resume == null && model == null) {
            throw new IllegalArgumentException("--resume: expected a file that train --save has written, or --model"
                    + " with a folder of Hugging Face, got neither");
        }
        if (resume != null && context != null) {
            throw new IllegalArgumentException(
                    "--context: expected none beside --resume, whose run had one, got " + context);
        }
        FileChecks.requireName("--resume", resume);
        FileChecks.requireName("--model", model);
        fasta.check();
        FileChecks.requireName("--report", report);
        FileChecks.requireApart("--report", report, "--resume", resume);
        fasta.requireOthers("--report", report);
        if (!texts.isEmpty() && fasta.areGiven()) {
            throw new IllegalArgumentException("--fasta: expected none beside --text, got one");
        }
        for (Path file : texts) {
            FileChecks.requireName("--text", file);
            FileChecks.requireApart("--report", report, "--text", file);
        }
        if (resume == null && texts.isEmpty() && Models.isDecoder(Objects.requireNonNull(model))) {
            throw new IllegalArgumentException("--text: expected files beside --model of a decoder, got none");
        }
    }

    private void evaluate() {
        check();
        TrainOptions options = options();
        if (provider != null) {
            System.setProperty(Provider.PROPERTY, provider.toString());
        }
        FastaSource proteins = texts.isEmpty() ? source() : null;
        try (Platform platform = opener.open(0);
                ReportWriter written = report == null ? null : new ReportWriter(report)) {
            TrainingPlan plan = options.plan(platform.isGpu(), platform.devices());
            TrainingData data = proteins != null ? new TrainingData.Proteins(proteins) : texts(plan);
            Evaluation evaluation =
                    EvaluationPlan.of(data, plan.shape().layout(), plan.shape().context());
            evaluation.check();
            Evaluation.Result result = evaluate(platform, plan, evaluation);
            out.println(data.name()
                    + (resume == null ? " of " + plan.start().name() : " after " + RunText.steps(result.step()))
                    + ": " + result);
            out.println(result.labelled() + " " + data.predicted() + " of " + result.sequences() + " sequences");
            if (!data.countedText().isEmpty()) {
                out.println(data.countedText());
            }
            if (written != null) {
                written.evaluation(result);
                written.counted(data);
                written.finish();
            }
        }
    }

    private TrainingData texts(TrainingPlan plan) {
        if (heldOut == null || !(plan.data() instanceof TrainingData.Texts(TextSource all))) {
            return plan.data();
        }
        return new TrainingData.Texts(
                new TextSource(all.files(), all.tokenizer(), all.config().only(heldOut)));
    }

    private FastaSource source() {
        FastaSource all = fasta.areGiven() ? fasta.source() : fasta.as(FastaSource.shipped());
        all.ensureRepeatable();
        return heldOut == null ? all : all.only(heldOut);
    }

    private Evaluation.Result evaluate(Platform platform, TrainingPlan plan, Evaluation evaluation) {
        SavedRun saved = SavedRun.of(resume, Wording.OPTIONS);
        try (Training training = platform.open(plan)) {
            Path folder = plan.start().folder();
            if (resume == null && folder != null) {
                training.begin(weights -> plan.start().model().load(weights, folder));
            }
            saved.load(training, resume, Wording.OPTIONS);
            List<RuntimeException> failures = new ArrayList<>();
            Evaluation.Result result =
                    ModelEvaluation.evaluate(training, evaluation, saved.steps(), () -> true, failures::add);
            if (!failures.isEmpty()) {
                throw failures.getFirst();
            }
            return Objects.requireNonNull(result);
        }
    }

    /** Returns the options of a run that would go on from the file or the folder. */
    private TrainOptions options() {
        List<String> arguments = new ArrayList<>(List.of("--ranks", Integer.toString(ranks)));
        if (resume != null) {
            addSaved(arguments, resume);
        }
        if (model != null) {
            arguments.addAll(List.of("--model", model.toString()));
        }
        if (context != null) {
            arguments.addAll(List.of("--context", context.toString()));
        }
        if (!texts.isEmpty()) {
            arguments.add("--text");
            texts.forEach(file -> arguments.add(file.toString()));
        }
        var options = new TrainOptions();
        try {
            CommandStart.line(options).setOverwrittenOptionsAllowed(true).parseArgs(arguments.toArray(String[]::new));
        } catch (ParameterException e) {
            throw new TrainingException("--resume: " + resume + ": " + CommandStart.text(e), e);
        }
        options.check();
        return options;
    }

    private static void addSaved(List<String> arguments, Path resume) {
        try (SafetensorsFile file = SafetensorsFile.open(resume)) {
            for (var option : TAKEN.entrySet()) {
                String value = file.metadata().get(option.getKey());
                if (value == null) {
                    throw new TrainingException.WrongOption("--resume: " + resume
                            + ": expected a file that train --save has written, got one without \"" + option.getKey()
                            + "\"");
                }
                arguments.addAll(Arrays.asList(option.getValue(), value));
            }
            if (!SavedRun.formOf(file).equals(TrainingPlan.Start.FOLDER)) {
                arguments.addAll(List.of("--form", SavedRun.formOf(file)));
            }
            String optimizer = file.metadata().get(SavedRun.OPTIMIZER);
            if (optimizer != null) {
                arguments.addAll(Arrays.asList("--optimizer", optimizer));
            }
            String average = file.metadata().get(SavedRun.AVERAGE);
            if (average != null) {
                arguments.addAll(Arrays.asList("--ema", average));
            }
        } catch (SafetensorsException e) {
            throw new TrainingException("--resume: " + e.getMessage(), e);
        }
    }
}
