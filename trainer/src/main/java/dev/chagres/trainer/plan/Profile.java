package dev.chagres.trainer.plan;

import dev.chagres.io.AtomicFile;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.trainer.StepEstimate;
import dev.chagres.trainer.TrainingException;
import dev.chagres.trainer.TrainingRecipe;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.FileChecks;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Makes some steps of a model on this machine's first device, and tells what takes their time: layers, a picture, and a trace that Perfetto opens.
 *
 * <p>Exit statuses: 0 done; 1 a file or the machine failed; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "profile",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Makes steps of a model on full batches, and tells what takes their time.",
        footer = {
            "",
            "Writes layers.txt, kernels.txt, kernels.png, memory.png, and trace.json, which",
            "https://ui.perfetto.dev opens. Kernels are told by CUPTI; without it times are of",
            "events around the calls of layers, for which profilers have NVTX ranges.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Profile implements Callable<Integer> {
    private static final int SLOWEST = 10;

    @Option(
            names = "--model",
            required = true,
            paramLabel = "SIZE|FOLDER",
            description = "a size of ESM-2, or a folder of Hugging Face with an ESM-2 or a decoder")
    private String model = "";

    @Option(
            names = "--out",
            required = true,
            converter = FileChecks.FileOption.class,
            paramLabel = "FOLDER",
            description = "where the files go; is made if need be")
    private Path folder = Path.of("");

    @Option(names = "--steps", paramLabel = "N", description = "how many are measured (default: 3)")
    private int steps = 3;

    @Option(
            names = "--recipe",
            converter = Plan.OfRecipe.class,
            paramLabel = "RECIPE",
            description = "precision of the layers, as train has it (default: bf16)")
    private TrainingRecipe recipe = TrainingRecipe.BF16;

    @Option(names = "--tokens-per-step", paramLabel = "TOKENS", description = "of one micro-batch (default: 16384)")
    private int tokens = 16_384;

    @Option(names = "--context", paramLabel = "TOKENS", description = "length of the sequences (default: 1024)")
    private int context = 1024;

    @Option(
            names = "--recompute",
            converter = OfRecompute.class,
            paramLabel = "none|activation|norms|layers",
            description = "what backward recomputes (default: activation for ESM-2, none for a decoder)")
    private @Nullable Recomputation recompute;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    static final class OfRecompute extends EnumOption<Recomputation> {
        OfRecompute() {
            super(Recomputation.class);
        }
    }

    private final PrintStream out;
    private final PrintStream err;

    Profile(PrintStream out, PrintStream err) {
        this.out = out;
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Returns the exit status of the command. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.of(new Profile(out, err), out, err, arguments);
    }

    @Override
    public Integer call() throws IOException {
        try {
            if (steps < 1) {
                throw new IllegalArgumentException("--steps: expected at least 1, got " + steps);
            }
            if (tokens < context || tokens % 16 != 0) {
                throw new IllegalArgumentException(
                        "--tokens-per-step: expected a multiple of 16, at least the context, " + context + ", got "
                                + tokens);
            }
            var asked = new Choice.Steps(PlannedModel.of(model, context), 1, tokens, context, recipe);
            Recomputation recomputed =
                    recompute != null ? recompute : asked.model().usualRecomputation();
            Choice choice = new Choice(Choice.Strategy.DDP, 1, recomputed, Choice.Updates.ADAMW);
            Files.createDirectories(folder);
            tell(choice, asked);
            return 0;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        } catch (TrainingException e) {
            err.println("profile: " + e.getMessage());
            return 1;
        } catch (OutOfMemoryError e) {
            err.println("profile: " + Plan.heapIsFull(e));
            return 1;
        }
    }

    private void tell(Choice choice, Choice.Steps asked) throws IOException {
        Path trace = folder.resolve("trace.json");
        StepEstimate.Profiled profiled;
        try (AtomicFile file = AtomicFile.create(trace)) {
            var json = new ByteArrayOutputStream();
            profiled = choice.enqueued(asked).profile(steps, json);
            file.append(json.toByteArray());
            file.publish();
        }
        Path layers = folder.resolve("layers.txt");
        Files.writeString(layers, profiled.rates() + System.lineSeparator());
        out.printf(
                Locale.ROOT,
                "%,.2f ms a step, enqueued one by one; %,.3f TFLOP/s of the model, %,.3f with recomputation: %.1f %% of the best product, %,.3f%n",
                profiled.stepMillis(),
                profiled.flops().model() / profiled.stepMillis() / 1e9,
                profiled.flops().all() / profiled.stepMillis() / 1e9,
                100 * profiled.flops().all() / profiled.stepMillis() / 1e9 / profiled.bestTeraflops(),
                profiled.bestTeraflops());
        out.printf(Locale.ROOT, "%-40s %10s %8s%n", "slowest kinds of layers", "ms a step", "share");
        for (StepEstimate.Profiled.Kind one : profiled.slowest(SLOWEST)) {
            out.printf(
                    Locale.ROOT,
                    "%-40s %10.3f %6.1f %%%n",
                    one.name(),
                    one.millis(),
                    100 * one.millis() / profiled.stepMillis());
        }
        out.println("memory: " + profiled.memory());
        var kernels = new ProfileReport(profiled.kernels(), steps, folder, err);
        out.print(kernels.text());
        List<Path> written = new ArrayList<>(List.of(layers, trace));
        written.addAll(kernels.write());
        out.println("written: " + written.stream().map(Path::toString).collect(Collectors.joining(", ")));
    }
}
