package dev.chagres.trainer;

import dev.chagres.bindings.ForeignText;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.command.FileChecks;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/**
 * Compares the losses of several runs: a picture with a line for each report, and the mean loss at the end of each.
 *
 * <p>Exit statuses: 0 done; 1 a file failed; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "plot",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Draws the losses of several runs in one picture, and prints how they end.")
public final class Plot implements Callable<Integer> {
    private static final int DONE = 0;
    private static final int FAILED = 1;

    private final PrintStream out;
    private final PrintStream err;

    @Parameters(
            arity = "1..*",
            converter = FileChecks.FileOption.class,
            paramLabel = "REPORT",
            description = "reports of train --report, the one that others are compared with first")
    private List<Path> reports = List.of();

    @Option(
            names = "--output",
            converter = FileChecks.FileOption.class,
            paramLabel = "FILE.png",
            description = "the picture (default: none)")
    private @Nullable Path output;

    @Option(
            names = "--mean-of",
            paramLabel = "N",
            description = "steps that a line and the printed mean average (default: 100)")
    private int meanOf = 100;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    Plot(PrintStream out, PrintStream err) {
        this.out = out;
        this.err = err;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        System.exit(run(System.out, System.err, arguments));
    }

    /** Runs the command and returns its exit status. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.printed(CommandStart.of(new Plot(out, err), out, err, arguments), "plot", out, err);
    }

    @Override
    public Integer call() {
        try {
            check();
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        }
        try {
            compare();
            return DONE;
        } catch (TrainingException e) {
            err.println("plot: " + e.getMessage());
            return FAILED;
        }
    }

    private void check() {
        if (meanOf < 1) {
            throw new IllegalArgumentException("--mean-of: expected at least 1, got " + meanOf);
        }
        Path target = output;
        Set<Path> named = new HashSet<>();
        for (Path report : reports) {
            FileChecks.requireName("REPORT", report);
            if (!named.add(report)) {
                throw new IllegalArgumentException(
                        "REPORT: expected each once, got " + ForeignText.plain(report) + " twice");
            }
            FileChecks.requireDifferent("--output", target, "REPORT", report);
        }
        FileChecks.requirePicture("--output", target);
    }

    private void compare() {
        Map<Path, ReportReader> runs = new LinkedHashMap<>();
        for (Path file : reports) {
            runs.put(file, ReportReader.read(file));
        }
        Map<String, LossCurve> curves = new LinkedHashMap<>();
        runs.forEach((file, run) -> curves.put(name(file, run, runs.values()), run.losses()));
        Set<String> models = runs.values().stream().map(ReportReader::model).collect(Collectors.toSet());
        Path target = output;
        if (target != null) {
            try (var plot = new LossPlot("--output", target)) {
                String title =
                        "ESM-2" + (models.size() == 1 ? " " + models.iterator().next() : "") + ", mean of "
                                + RunText.steps(meanOf);
                plot.write(title, curves, meanOf);
            }
        }
        LossCurve first = curves.values().iterator().next();
        for (Map.Entry<String, LossCurve> run : curves.entrySet()) {
            LossCurve losses = run.getValue();
            double last = losses.mean(losses.steps() - 1, meanOf);
            out.println(run.getKey()
                    + String.format(
                            Locale.ROOT,
                            ": %s%s, mean loss of the last %,d: %.4f",
                            RunText.steps(losses.steps()),
                            begun(losses),
                            Math.min(meanOf, losses.steps()),
                            last)
                    + (losses == first ? "" : beside(first, losses, last)));
        }
    }

    /** Returns what is called a run: how it was trained, and the file where several were trained so. */
    private static String name(Path file, ReportReader run, Collection<ReportReader> all) {
        long alike = all.stream().filter(other -> name(other).equals(name(run))).count();
        return name(run) + (alike > 1 ? ", " + ForeignText.plain(file) : "");
    }

    private static String name(ReportReader run) {
        return run.model() + " " + run.recipe() + run.ranks();
    }

    /** Says where the steps of a run begin that went on from an earlier one. */
    private static String begun(LossCurve losses) {
        int first = losses.number(0);
        return first == 1 ? "" : String.format(Locale.ROOT, " from step %,d on", first);
    }

    /** Says how a mean differs from the first run's, or why the two are not compared. */
    private String beside(LossCurve first, LossCurve losses, double last) {
        double base = first.mean(first.steps() - 1, meanOf);
        boolean sameSteps = losses.number(losses.steps() - 1) == first.number(first.steps() - 1)
                && Math.min(meanOf, losses.steps()) == Math.min(meanOf, first.steps());
        if (!sameSteps) {
            return " (not compared: other steps than the first's)";
        }
        if (!(base > 0) || !Double.isFinite(last / base)) {
            return " (not compared: the means have no ratio)";
        }
        double percent = Math.round(1e4 * (last / base - 1)) / 1e2; // a difference of nothing is not -0.00
        return String.format(Locale.ROOT, " (%+.2f %%)", percent);
    }
}
