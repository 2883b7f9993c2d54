package dev.chagres.trainer.finetune;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.huggingface.Models;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.trainer.TrainingException;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.Interruption;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Fine-tunes a model in a folder of transformers as a whole, in part, or by low-rank adapters: an ESM-2 on labelled sequences, classes or a
 * number of each, or classes of their residues; a decoder on text. Saves the best evaluated state as a folder that transformers or PEFT opens.
 *
 * <p>Exit statuses: 0 done; 1 the data, a file or the machine failed, told in one line; 2 the options are wrong; 130 ended by Ctrl-C (143 by
 * SIGTERM). The best state so far is saved, however the run ends.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "finetune",
        mixinStandardHelpOptions = true,
        sortOptions = false,
        description = "Fine-tunes an ESM-2 of transformers on labelled protein sequences, or a decoder on text.",
        footer = {
            "",
            "Proteins: --task, --train, and --eval or --eval-fraction. CSV with the columns sequence and label, or FASTA and a file with a label a line.",
            "Of tokens a label has a letter for each residue; of multi-label, semicolons between classes.",
            "Text: --text, and --eval-text or --eval-fraction if the best state is to be saved instead of the last.",
            "However the run ends, by Ctrl-C or an error too, the best state so far is saved. Until then it is FOLDER.best.safetensors.",
            "Exit status: 0 done, 1 failed, 2 wrong options, 130 Ctrl-C."
        })
public final class FineTune implements Callable<Integer> {
    private static final int DONE = 0;
    private static final int FAILED = 1;

    private final PrintStream out;
    private final PrintStream err;
    private final Interruption interruption;

    @Option(
            names = "--model",
            required = true,
            paramLabel = "FOLDER",
            description = "an ESM-2 or a decoder of transformers")
    private Path model = Path.of("");

    @Option(
            names = "--save",
            required = true,
            paramLabel = "FOLDER",
            description = "a new folder: of transformers, with --lora of PEFT")
    private Path save = Path.of("");

    @Option(
            names = "--resume-saved",
            description =
                    "go on from the best state of a run of the same --save and data that was killed, if there is one; Ctrl-C"
                            + " keeps that state, too, instead of writing the folder")
    private boolean resumeSaved;

    @Option(
            names = "--lora",
            converter = LoraOption.class,
            paramLabel = "SPEC",
            description =
                    "train low-rank adapters, and the head of an ESM-2: r=16,alpha=32,dropout=0.05,target=query,value."
                            + " Targets: query, key, value, projection, fc1 (of decoders gate, up), fc2 (default:"
                            + " query,value); scaling=rank or root")
    private @Nullable LoraConfig lora;

    @Mixin
    private ProteinOptions proteins = new ProteinOptions();

    @Mixin
    private TextOptions texts = new TextOptions();

    @Mixin
    private TuningOptions options = new TuningOptions();

    @Spec
    private CommandSpec spec = CommandSpec.create();

    FineTune(PrintStream out, PrintStream err, Interruption interruption) {
        this.out = out;
        this.err = err;
        this.interruption = interruption;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Runs the command and returns its exit status. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return run(new Interruption("finetune", err), out, err, arguments);
    }

    /** Runs the command, which {@code interruption} ends, and returns its exit status. */
    static int run(Interruption interruption, PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new FineTune(out, err, interruption), out, err, arguments);
    }

    @Override
    public Integer call() throws IOException, InterruptedException {
        interruption.arm();
        try {
            fineTune();
            return DONE;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        } catch (TrainingException | DataException e) {
            err.println("finetune: " + ForeignText.lines(String.valueOf(e.getMessage())));
            return FAILED;
        } finally {
            interruption.disarm();
        }
    }

    private void fineTune() throws IOException, InterruptedException {
        options.check();
        texts.check();
        if (Files.exists(save)) {
            throw new IllegalArgumentException(
                    "--save: expected a new folder, got " + save + ", which is there already");
        }
        Tuned tuned;
        if (texts.areGiven()) {
            String other = proteins.given();
            if (other != null) {
                throw new IllegalArgumentException(other + ": expected none beside --text, got one");
            }
            tuned = texts.tuned(model, lora, options);
        } else {
            if (Files.isDirectory(model) && Models.isDecoder(model)) {
                throw new IllegalArgumentException("--text: expected files beside --model of a decoder, got none");
            }
            proteins.check(lora, options);
            tuned = proteins.tuned(model, lora, options);
        }
        new TuningRun(tuned, options, save, interruption, out, err)
                .train(resumeSaved ? TuningRun.Earlier.RESUMED : TuningRun.Earlier.REFUSED);
    }
}
