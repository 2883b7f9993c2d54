package dev.chagres.trainer.plan;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.MemoryUse;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Provider;
import dev.chagres.trainer.StepEstimate;
import dev.chagres.trainer.TrainingException;
import dev.chagres.trainer.TrainingRecipe;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.ProgressLine;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Tells ways to train a model on so many GPUs, with the memory and the tokens a second of each, the best first. Nothing is computed: steps run
 * on devices that count.
 *
 * <p>Exit statuses: 0 done; 1 nothing fits, or the machine failed; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "plan",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Tells ways to train a model on H200 GPUs, with memory and tokens a second, the best first.",
        footer = {
            "",
            "Memory is counted by the program's own calls. Times are predicted from counted",
            "operations and bytes at rates that were measured on H200: docs/planning.md.",
            "Exit status: 0 done, 1 nothing fits or failed, 2 wrong options."
        })
public final class Plan implements Callable<Integer> {
    private static final double GIB = 1L << 30;
    static final String MEASURE_ONE = "--measure-one";

    @Option(
            names = "--model",
            required = true,
            paramLabel = "SIZE|FOLDER",
            description = "a size of ESM-2, or a folder of Hugging Face with an ESM-2 or a decoder")
    private String model = "";

    @Option(names = "--gpus", paramLabel = "N", description = "how many GPUs of one host (default: 1)")
    private int gpus = 1;

    @Option(names = "--memory", paramLabel = "GIB", description = "memory of each in GiB (default: 139, an H200's)")
    private float memory = 139;

    @Option(
            names = "--interconnect",
            paramLabel = "nvlink|pcie|GB/S",
            description = "what joins the GPUs, or how many GB/s a collective reaches (default: nvlink, 330)")
    private String interconnect = "nvlink";

    @Option(
            names = "--recipe",
            converter = OfRecipe.class,
            paramLabel = "RECIPE",
            description = "precision of the layers, as train has it (default: bf16)")
    private TrainingRecipe recipe = TrainingRecipe.BF16;

    @Option(
            names = "--tokens-per-step",
            paramLabel = "TOKENS",
            description = "tokens of a step of all GPUs (default: 16384 a GPU)")
    private @Nullable Integer tokens;

    @Option(names = "--context", paramLabel = "TOKENS", description = "longest sequence (default: 1024)")
    private int context = 1024;

    @Option(
            names = "--mean-length",
            paramLabel = "TOKENS",
            description = "mean length of sequences, of which attention's time follows (default: the context)")
    private @Nullable Integer meanLength;

    @Option(
            names = "--optimizer",
            split = EnumOption.LIST,
            converter = OfUpdates.class,
            paramLabel = "NAME,…",
            description =
                    "of adamw, adamw-offloaded, adamw8bit, lion, lion8bit, sgd, adafactor, muon, schedule-free (default:"
                            + " adamw)")
    private List<Choice.Updates> optimizers = List.of(Choice.Updates.ADAMW);

    @Option(
            names = "--all",
            description = "also what needs more memory than there is, and more micro-batches than necessary")
    private boolean all;

    @Option(names = "--json", description = "write JSON")
    private boolean json;

    @Option(
            names = "--measure",
            arity = "0..1",
            fallbackValue = "3",
            paramLabel = "N",
            description = "make steps of the N best choices on this machine's GPUs, and compare (default: 3)")
    private @Nullable Integer measure;

    @Option(names = MEASURE_ONE, hidden = true)
    private @Nullable String measureOne;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    static final class OfRecipe extends EnumOption<TrainingRecipe> {
        OfRecipe() {
            super(TrainingRecipe.class);
        }
    }

    static final class OfUpdates extends EnumOption<Choice.Updates> {
        OfUpdates() {
            super(Choice.Updates.class);
        }
    }

    private final PrintStream out;
    private final PrintStream err;

    Plan(PrintStream out, PrintStream err) {
        this.out = out;
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        CommandStart.leaveOutProvider();
        chooseProvider(arguments);
        System.exit(run(System.out, System.err, arguments));
    }

    /** Chooses the one that counts, unless the user chose one or this process is to make steps. */
    private static void chooseProvider(String... arguments) {
        boolean counts = Arrays.stream(arguments).noneMatch(argument -> argument.startsWith(MEASURE_ONE));
        if (counts && System.getProperty(Provider.PROPERTY, "auto").equals("auto")) {
            System.setProperty(Provider.PROPERTY, Provider.REFERENCE.label());
            CommandStart.leaveOutWarnings();
        }
    }

    /** Returns the exit status of the command. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.printed(CommandStart.of(new Plan(out, err), out, err, arguments), "plan", out, err);
    }

    @Override
    public Integer call() {
        try {
            Choice.Steps steps = steps();
            if (measureOne != null) {
                return new MeasuredWays(model, steps, out).here(Choice.parse(measureOne), err);
            }
            requireCounting();
            return tell(steps);
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        } catch (TrainingException e) {
            err.println("plan: " + e.getMessage());
            return 1;
        } catch (OutOfMemoryError e) {
            err.println("plan: " + heapIsFull(e));
            return 1;
        }
    }

    private static void requireCounting() {
        if (Provider.current() != Provider.REFERENCE) {
            throw new IllegalArgumentException("-D" + Provider.PROPERTY
                    + ": expected reference, which counts without computing, got "
                    + Provider.current().label() + "; leave it out: plan takes the reference, and --measure the GPUs");
        }
    }

    /** A dry run has the arrays of a micro-batch in the heap. */
    static String heapIsFull(OutOfMemoryError e) {
        return "expected a micro-batch that the Java heap of "
                + (Runtime.getRuntime().maxMemory() >> 20)
                + " MiB holds, got a larger one (" + e.getMessage()
                + "); take fewer --tokens-per-step, or a larger -Xmx in CHAGRES_JAVA_OPTIONS";
    }

    private Choice.Steps steps() {
        atLeastOne("--gpus", gpus);
        atLeastOne("--context", context);
        if (!(memory > 0 && memory < Float.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("--memory: expected a finite number of GiB above 0, got " + memory);
        }
        atLeastOne("--measure", measure == null ? 1 : measure);
        for (Choice.Updates one : optimizers) {
            if (Collections.frequency(optimizers, one) > 1) {
                throw new IllegalArgumentException("--optimizer: expected each name once, got " + one + " again");
            }
        }
        long multiple = 16L * gpus;
        long wanted = tokens == null ? 16_384L * gpus : tokens;
        if (wanted < context || wanted % multiple != 0 || wanted > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("--tokens-per-step: expected a multiple of " + multiple
                    + ", at least the context, " + context + ", and below 2^31, got " + wanted);
        }
        if (meanLength != null && (meanLength < 1 || meanLength > context)) {
            throw new IllegalArgumentException(
                    "--mean-length: expected 1 to the context, " + context + ", got " + meanLength);
        }
        linkBytes();
        return new Choice.Steps(PlannedModel.of(model, context), gpus, (int) wanted, context, recipe);
    }

    private static void atLeastOne(String option, int value) {
        if (value < 1) {
            throw new IllegalArgumentException(option + ": expected at least 1, got " + value);
        }
    }

    private double linkBytes() {
        String word = interconnect.toLowerCase(Locale.ROOT);
        if (word.equals("nvlink")) {
            return 330e9;
        }
        if (word.equals("pcie")) {
            return 25e9;
        }
        try {
            double given = Double.parseDouble(word);
            if (given > 0 && Double.isFinite(given)) {
                return given * 1e9;
            }
        } catch (NumberFormatException e) {
            // told below
        }
        throw new IllegalArgumentException("--interconnect: expected nvlink, pcie or GB/s above 0, got "
                + (interconnect.isBlank() ? "nothing" : ForeignText.plain(interconnect)));
    }

    private int tell(Choice.Steps steps) {
        double length = meanLength == null ? Math.min(context, steps.tokens()) : meanLength;
        var ways = new CountedWays(steps, memory * GIB, linkBytes(), length, all);
        List<CountedWays.Row> rows;
        try (var progress = new ProgressLine(err)) {
            rows = ways.count(optimizers, progress);
        }
        if (rows.isEmpty()) {
            err.println(
                    "plan: nothing fits: no way to divide " + steps.tokens() + " tokens of sequences of " + context
                            + " trains " + steps.model().name() + " on " + gpus + " GPUs of " + memory
                            + " GiB; more GPUs, a shorter --context, or --optimizer adamw8bit,lion8bit; --all tells what each way needs");
            return 1;
        }
        rows.sort(Comparator.comparingDouble((CountedWays.Row row) -> ways.fits(row) ? 0 : 1)
                .thenComparingDouble(row -> -row.tokensPerSecond()));
        var measuredWays = new MeasuredWays(model, steps, out);
        List<Map<String, Object>> measured = measure == null ? List.of() : measuredWays.measure(rows, measure);
        if (json) {
            out.println(json(rows, measured, steps));
        } else {
            table(ways, rows);
            measuredWays.tell(measured);
        }
        return 0;
    }

    private void table(CountedWays ways, List<CountedWays.Row> rows) {
        Choice.Steps steps = ways.steps();
        out.printf(
                Locale.ROOT,
                "%s, %s, %d GPU%s of %.0f GiB, %,d tokens a step, sequences of up to %d%n",
                steps.model().name(),
                recipe,
                gpus,
                gpus == 1 ? "" : "s",
                memory,
                steps.tokens(),
                context);
        out.printf(
                Locale.ROOT,
                "%-8s %10s %9s %7s %15s %8s %8s %10s %12s %7s %10s%n",
                "strategy",
                "accumulate",
                "recompute",
                "offload",
                "optimizer",
                "GiB",
                "host GiB",
                "step ms",
                "tokens/s",
                "TFLOP/s",
                "exposed");
        for (CountedWays.Row row : rows) {
            double seconds = row.time().seconds();
            out.printf(
                    Locale.ROOT,
                    "%-8s %10d %9s %7s %15s %7.1f%s %8.1f %10.1f %,12.0f %7.0f %8.1f %%%n",
                    gpus == 1 ? "-" : row.choice().strategy(),
                    row.choice().accumulate(),
                    EnumOption.word(row.choice().recompute()),
                    row.choice().offload().isNone() ? "-" : row.choice().offload(),
                    row.choice().optimizer(),
                    row.bytes() / GIB,
                    ways.fits(row) ? " " : "!",
                    row.estimate().hostBytes() / GIB,
                    1e3 * seconds,
                    row.tokensPerSecond(),
                    row.estimate().flops().model() / seconds / 1e12,
                    100 * row.time().communication() / seconds);
        }
        CountedWays.Row best = rows.getFirst();
        out.println("memory of the first: " + worst(best.estimate()) + "; CUDA and its libraries about "
                + String.format(Locale.ROOT, "%,.0f MiB", ways.besides() / (1 << 20)));
        if (best.estimate().hostBytes() > 0) {
            out.printf(
                    Locale.ROOT,
                    "page-locked memory of the host: %,.1f GiB for each rank%n",
                    best.estimate().hostBytes() / GIB);
        }
        if (steps.model().esm() != null) {
            out.println(command(model, best.choice(), steps));
        }
    }

    /** Returns the command that trains so. */
    static String command(String model, Choice choice, Choice.Steps steps) {
        return "./chagres train --model " + model + " --recipe " + steps.recipe() + " --context " + steps.context()
                + " " + choice.options(steps);
    }

    private static MemoryUse worst(StepEstimate estimate) {
        return estimate.memory().stream()
                .max(Comparator.comparingLong(MemoryUse::total))
                .orElseThrow();
    }

    private static String json(List<CountedWays.Row> rows, List<Map<String, Object>> measured, Choice.Steps steps) {
        List<Map<String, Object>> choices = new ArrayList<>();
        for (CountedWays.Row row : rows) {
            Map<String, Object> one = new LinkedHashMap<>();
            one.put("strategy", row.choice().strategy().toString());
            one.put("accumulate", row.choice().accumulate());
            one.put("recompute", EnumOption.word(row.choice().recompute()));
            one.put("offload", row.choice().offload().toString());
            one.put("optimizer", row.choice().optimizer().toString());
            one.put("memoryBytes", (long) row.bytes());
            one.put("hostBytes", row.estimate().hostBytes());
            Map<String, Long> holders = new LinkedHashMap<>();
            new TreeMap<>(worst(row.estimate()).bytes())
                    .forEach((holder, bytes) -> holders.put(holder.toString(), bytes));
            one.put("holders", holders);
            one.put("stepSeconds", row.time().seconds());
            one.put("productSeconds", row.time().products());
            one.put("attentionSeconds", row.time().attention());
            one.put("elementwiseSeconds", row.time().elementwise());
            one.put("exposedCopySeconds", row.time().copies());
            one.put("updateSeconds", row.time().update());
            one.put("exposedCommunicationSeconds", row.time().communication());
            one.put("tokensPerSecond", row.tokensPerSecond());
            one.put("modelFlops", row.estimate().flops().model());
            one.put("recomputedFlops", row.estimate().flops().recomputation());
            one.put("options", row.choice().options(steps));
            choices.add(one);
        }
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("model", steps.model().name());
        report.put("gpus", steps.gpus());
        report.put("tokensPerStep", steps.tokens());
        report.put("choices", choices);
        report.put("measured", measured);
        try {
            return JSON.std.with(JSON.Feature.PRETTY_PRINT_OUTPUT).asString(report);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
