package dev.chagres.trainer.plan;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.trainer.TrainingRecipe;
import dev.chagres.trainer.command.BuildVersion;
import dev.chagres.trainer.command.CommandStart;
import dev.chagres.trainer.plan.PlannedModel.Product;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * Names dimensions of a model that tensor cores compute badly, with the counted loss and the next better value.
 *
 * <p>Exit statuses: 0 done; 1 the machine or a folder failed; 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "advise",
        mixinStandardHelpOptions = true,
        versionProvider = BuildVersion.class,
        sortOptions = false,
        description = "Names dimensions that tensor cores or FP8 compute badly, and the next better value.",
        footer = {
            "",
            "Losses are counted, not measured: tiles and waves that are not full, and",
            "alignment. docs/planning.md has the formula.",
            "Exit status: 0 done, 1 failed, 2 wrong options."
        })
public final class Advise implements Callable<Integer> {
    /** How much larger a better value may be. */
    private static final double FARTHEST = 0.25;
    /** A smaller gain is none. */
    private static final double LEAST_GAIN = 0.005;

    @Option(
            names = "--model",
            paramLabel = "SIZE|FOLDER",
            description = "a size of ESM-2, or a folder of Hugging Face; or the sizes below")
    private @Nullable String model;

    @Option(names = "--hidden", paramLabel = "H", description = "columns between layers")
    private @Nullable Integer hidden;

    @Option(names = "--heads", paramLabel = "h", description = "heads of queries")
    private @Nullable Integer heads;

    @Option(names = "--head-dim", paramLabel = "d", description = "columns of a head (default: H / h)")
    private @Nullable Integer headDim;

    @Option(names = "--inner", paramLabel = "F", description = "columns of the feed-forward (default: 4 H)")
    private @Nullable Integer inner;

    @Option(names = "--vocabulary", paramLabel = "V", description = "columns of the logits")
    private @Nullable Integer vocabulary;

    @Option(names = "--tokens", paramLabel = "T", description = "tokens of a micro-batch (default: 16384)")
    private int tokens = 16_384;

    @Option(
            names = "--recipe",
            converter = Plan.OfRecipe.class,
            paramLabel = "RECIPE",
            description = "precision of the layers, as train has it (default: bf16)")
    private TrainingRecipe recipe = TrainingRecipe.BF16;

    @Option(
            names = "--multiprocessors",
            paramLabel = "N",
            description = "of the GPU (default: 132, an H100's or H200's)")
    private int multiprocessors = 132;

    @Option(names = "--json", description = "write JSON")
    private boolean json;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    private final PrintStream out;

    Advise(PrintStream out) {
        this.out = out;
    }

    /** Runs the command and ends the process with its exit status. */
    public static void main(String[] arguments) {
        CommandStart.leaveOutProvider();
        System.exit(run(System.out, System.err, arguments));
    }

    /** Returns the exit status of the command. */
    static int run(PrintStream out, PrintStream err, String... arguments) {
        return CommandStart.printed(CommandStart.of(new Advise(out), out, err, arguments), "advise", out, err);
    }

    /**
     * The dimensions of a model's products.
     *
     * @param gated whether the feed-forward has a gate beside its first product
     * @param tied whether the heads together have the columns between layers, as in ESM-2: then they grow with them
     */
    record Sizes(
            int layers,
            int hidden,
            int heads,
            int keyHeads,
            int headDim,
            int inner,
            int logits,
            int tokens,
            boolean gated,
            boolean tied) {
        Sizes withHidden(int value) {
            int queries = tied ? value / headDim : heads;
            int keys = tied ? queries : keyHeads;
            return new Sizes(layers, value, queries, keys, headDim, inner, logits, tokens, gated, tied);
        }

        Sizes withHeads(int value) {
            return new Sizes(
                    layers,
                    hidden,
                    value,
                    keyHeads == heads ? value : keyHeads,
                    headDim,
                    inner,
                    logits,
                    tokens,
                    gated,
                    tied);
        }

        Sizes withHeadDim(int value) {
            return new Sizes(layers, hidden, heads, keyHeads, value, inner, logits, tokens, gated, tied);
        }

        Sizes withInner(int value) {
            return new Sizes(layers, hidden, heads, keyHeads, headDim, value, logits, tokens, gated, tied);
        }

        Sizes withLogits(int value) {
            return new Sizes(layers, hidden, heads, keyHeads, headDim, inner, value, tokens, gated, tied);
        }

        Sizes withTokens(int value) {
            return new Sizes(layers, hidden, heads, keyHeads, headDim, inner, logits, value, gated, tied);
        }

        List<Product> products() {
            return List.of(
                    new Product("query, key, value", (heads + 2 * keyHeads) * headDim, hidden, layers, true),
                    new Product("projection", hidden, heads * headDim, layers, true),
                    new Product("feed-forward, first", (gated ? 2 : 1) * inner, hidden, layers, true),
                    new Product("feed-forward, second", hidden, inner, layers, true),
                    new Product("logits", logits, hidden, 1, false));
        }

        /** Returns the operations of a step's products, divided by those that the GPU could have made in their time. */
        double efficiency(int multiprocessors, int bits) {
            double wanted = 0;
            double taken = 0;
            for (Product one : products()) {
                var tiles = new TileCount(multiprocessors, one.quantized() ? bits : 16);
                // FP8 makes twice as many operations in a time.
                double work =
                        (double) one.times() * tokens * one.outputs() * one.inputs() * (tiles.bits() == 8 ? 0.5 : 1);
                wanted += 3 * work;
                taken += work / tiles.efficiency(tokens, one.outputs(), one.inputs())
                        + work / tiles.efficiency(tokens, one.inputs(), one.outputs())
                        + work / tiles.efficiency(one.outputs(), one.inputs(), tokens);
            }
            return wanted / taken;
        }
    }

    /**
     * What is said of a dimension.
     *
     * @param loss share of the products' time
     * @param better the next better value; 0 for none nearby
     * @param gain of the better value, in operations a second
     */
    record Row(String dimension, int value, double loss, int better, double gain, String reason) {}

    @Override
    public Integer call() {
        try {
            Sizes sizes = sizes();
            int bits = recipe.quantizedWeight().isPresent() ? 8 : 16;
            tell(sizes, bits, rows(sizes, multiprocessors, bits));
            return 0;
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        }
    }

    private Sizes sizes() {
        PlannedModel planned = model == null ? null : PlannedModel.of(model, 1024);
        int columns = given("--hidden", hidden, planned == null ? 0 : planned.hidden());
        int queries = given("--heads", heads, planned == null ? 0 : planned.heads());
        int dim = given("--head-dim", headDim, planned == null ? columns / queries : planned.headDim());
        int wide = given("--inner", inner, planned == null ? 4 * columns : planned.inner());
        int logits = given("--vocabulary", vocabulary, planned == null ? 64 : planned.logits());
        given("--tokens", tokens, 0);
        given("--multiprocessors", multiprocessors, 0);
        int keys = planned == null || heads != null ? queries : planned.keyHeads();
        int layers = planned == null ? 1 : planned.layers();
        boolean gated = planned != null && planned.esm() == null;
        boolean tied = !gated && headDim == null && columns == queries * dim;
        return new Sizes(layers, columns, queries, keys, dim, wide, logits, tokens, gated, tied);
    }

    private static int given(String option, @Nullable Integer value, int otherwise) {
        int taken = value == null ? otherwise : value;
        if (taken < 1) {
            throw new IllegalArgumentException(option + ": expected at least 1" + (value == null ? ", or --model" : "")
                    + ", got " + (value == null ? "nothing" : value));
        }
        return taken;
    }

    /** Returns what is to be said of each dimension. */
    static List<Row> rows(Sizes sizes, int multiprocessors, int bits) {
        List<Row> rows = new ArrayList<>();
        rows.add(row("hidden", sizes.hidden, sizes::withHidden, sizes, multiprocessors, bits));
        rows.add(row("feed-forward", sizes.inner, sizes::withInner, sizes, multiprocessors, bits));
        rows.add(
                sizes.tied
                        ? new Row("heads", sizes.heads, 0, 0, 0, "hidden columns / head dimension")
                        : row("heads", sizes.heads, sizes::withHeads, sizes, multiprocessors, bits));
        rows.add(headDim(sizes, multiprocessors, bits));
        rows.add(row("vocabulary", sizes.logits, sizes::withLogits, sizes, multiprocessors, bits));
        rows.add(row("tokens", sizes.tokens, sizes::withTokens, sizes, multiprocessors, bits));
        return rows;
    }

    private static Row row(
            String dimension, int value, IntFunction<Sizes> with, Sizes sizes, int multiprocessors, int bits) {
        int step = dimension.equals("heads") ? 1 : 16;
        int wanted =
                dimension.equals("vocabulary") ? 8 : dimension.equals("heads") ? 1 : new TileCount(1, bits).alignment();
        double now = sizes.efficiency(multiprocessors, bits);
        if (value % wanted != 0) {
            int aligned = Math.ceilDiv(value, wanted) * wanted;
            return new Row(
                    dimension,
                    value,
                    1 - now,
                    aligned,
                    Double.NaN,
                    bits == 8 && wanted == 16
                            ? "products in eight bits take multiples of 16 alone"
                            : "kernels that load by 16 bytes take multiples of 8 alone");
        }
        int better = 0;
        double best = now * (1 + LEAST_GAIN);
        int first = Math.ceilDiv(value + 1, step) * step;
        for (int next = first; next <= value * (1 + FARTHEST); next += step) {
            if (dimension.equals("hidden") && sizes.tied && next % sizes.headDim != 0) {
                continue; // no whole number of heads
            }
            double then = with.apply(next).efficiency(multiprocessors, bits);
            if (then > best) {
                best = then;
                better = next;
                if (then > now * (1 + 4 * LEAST_GAIN)) {
                    break; // the next, not the farthest
                }
            }
        }
        double without = better == 0 ? now : best;
        return new Row(
                dimension,
                value,
                1 - now / without,
                better,
                without / now - 1,
                better == 0
                        ? ""
                        : dimension.equals("hidden") && sizes.tied
                                ? "tiles and waves are fuller, with " + better / sizes.headDim + " heads"
                                : "tiles and waves are fuller");
    }

    /** Attention's kernels compute heads of 64, 128, 192 and 256 columns: others are filled up. */
    private static Row headDim(Sizes sizes, int multiprocessors, int bits) {
        int value = sizes.headDim;
        int filled = value > 256 ? value : Math.ceilDiv(value, 64) * 64;
        if (value % 8 != 0 || value > 256) {
            return new Row(
                    "head dimension",
                    value,
                    Double.NaN,
                    value > 256 ? 256 : Math.ceilDiv(value, 8) * 8,
                    Double.NaN,
                    "attention takes multiples of 8 up to 256 alone");
        }
        if (filled != value) {
            return new Row(
                    "head dimension",
                    value,
                    1 - (double) value / filled,
                    filled,
                    (double) filled / value - 1,
                    sizes.tied
                            ? "of attention: its kernels fill heads up; take fewer heads"
                            : "of attention: its kernels fill heads up");
        }
        double now = sizes.efficiency(multiprocessors, bits);
        double then = sizes.withHeadDim(value + 64).efficiency(multiprocessors, bits);
        boolean better = !sizes.tied && value < 256 && value * FARTHEST >= 64 && then > now * (1 + LEAST_GAIN);
        return new Row(
                "head dimension",
                value,
                better ? 1 - now / then : 0,
                better ? value + 64 : 0,
                better ? then / now - 1 : 0,
                better ? "tiles and waves are fuller" : "");
    }

    private void tell(Sizes sizes, int bits, List<Row> rows) {
        double efficiency = sizes.efficiency(multiprocessors, bits);
        if (json) {
            Map<String, Object> report = new LinkedHashMap<>();
            report.put("efficiency", efficiency);
            report.put("dimensions", rows.stream().map(Advise::members).toList());
            try {
                out.println(JSON.std.with(JSON.Feature.PRETTY_PRINT_OUTPUT).asString(report));
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            return;
        }
        out.printf(
                Locale.ROOT,
                "products of %s, %,d tokens, %d multiprocessors: %.1f %% of full tiles and waves%n",
                recipe,
                sizes.tokens,
                multiprocessors,
                100 * efficiency);
        out.printf(
                Locale.ROOT, "%-15s %8s %8s %8s %8s  %s%n", "dimension", "value", "loss", "better", "gain", "reason");
        for (Row row : rows) {
            out.printf(
                    Locale.ROOT,
                    "%-15s %8d %8s %8s %8s  %s%n",
                    row.dimension,
                    row.value,
                    percent(row.loss),
                    row.better == 0 ? "-" : String.valueOf(row.better),
                    row.better == 0 ? "-" : percent(row.gain),
                    row.reason);
        }
    }

    private static String percent(double share) {
        return Double.isNaN(share) ? "?" : String.format(Locale.ROOT, "%.1f %%", 100 * share);
    }

    private static Map<String, Object> members(Row row) {
        Map<String, Object> one = new LinkedHashMap<>();
        one.put("dimension", row.dimension);
        one.put("value", row.value);
        one.put("loss", Double.isNaN(row.loss) ? null : row.loss);
        one.put("better", row.better == 0 ? null : row.better);
        one.put("gain", Double.isNaN(row.gain) ? null : row.gain);
        one.put("reason", row.reason);
        return one;
    }
}
