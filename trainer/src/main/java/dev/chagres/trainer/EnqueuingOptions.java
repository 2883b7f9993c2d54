package dev.chagres.trainer;

import dev.chagres.MultiprocessorMargin;
import dev.chagres.ops.ProductPlan;
import java.nio.file.Path;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options of {@code train} that say which kernels run, and how they are enqueued. */
final class EnqueuingOptions {
    /** Values of {@code --graph}. */
    enum GraphChoice {
        ON,
        OFF,
        AUTO;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    @Option(
            names = "--product-plans",
            converter = OptionWords.OfProductPlan.class,
            paramLabel = "first|measured",
            description =
                    "cuBLASLt's kernel for each product: the first that its heuristic names, or the fastest, measured"
                            + " before the first step (default: measured)")
    private ProductPlan productPlan = ProductPlan.MEASURED;

    @Option(
            names = "--sm-margin",
            paramLabel = "N",
            description = "multiprocessors of each device that kernels of norms leave to collectives (default: 0)")
    private int norms;

    @Option(
            names = "--product-sm-margin",
            paramLabel = "N",
            description = "multiprocessors of each device that matrix products leave to collectives (default: 0)")
    private int products;

    @Option(
            names = "--graph",
            converter = OptionWords.OfGraph.class,
            paramLabel = "on|off|auto",
            description =
                    "capture steps as graphs and replay them. on: also with --strategy ddp or tp; auto: on a GPU with"
                            + " one rank (default: auto)")
    private GraphChoice graph = GraphChoice.AUTO;

    @Option(
            names = "--fp8-statistics",
            paramLabel = "N",
            description =
                    "measure the casts to eight bits of every Nth step for the report; these steps are not replayed"
                            + " (default: 0, none)")
    private int fp8Statistics;

    /**
     * Checks what depends on neither the platform nor files.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check(RankOptions ranks, OptimizerOptions updates) {
        TrainOptions.requireAtLeast("--sm-margin", norms, 0);
        TrainOptions.requireAtLeast("--product-sm-margin", products, 0);
        if (graph == GraphChoice.ON && !ranks.layout().isCapturable()) {
            throw new IllegalArgumentException(
                    "--graph: expected off or auto, or --strategy ddp or tp beside it, for steps with sharded"
                            + " weights, gradients, layers or tokens are not captured, got on beside "
                            + ranks.layout());
        }
        if (graph == GraphChoice.ON && !updates.isCapturable()) {
            throw new IllegalArgumentException(
                    "--graph: expected off or auto beside --offload, for steps that copy from the host's memory are"
                            + " not captured, got on");
        }
        if (graph == GraphChoice.ON && ranks.arePolled()) {
            throw new IllegalArgumentException("--graph: expected off or auto beside"
                    + " -Dchagres.collective.calls=non-blocking, for collectives whose calls are polled are not captured,"
                    + " got on");
        }
    }

    /**
     * Checks whether there are casts to be measured, and a report that tells of them.
     *
     * @throws IllegalArgumentException when not; the text names the option
     */
    void checkStatistics(@Nullable TrainingRecipe recipe, @Nullable Path report) {
        TrainOptions.requireAtLeast("--fp8-statistics", fp8Statistics, 0);
        if (fp8Statistics == 0) {
            return;
        }
        if (recipe == null || recipe.quantizedWeight().isEmpty()) {
            throw new IllegalArgumentException(
                    "--fp8-statistics: expected --recipe fp8-delayed, fp8-delayed-fast, fp8-current or fp8-block,"
                            + " whose casts are measured, got " + (recipe == null ? "none" : recipe));
        }
        if (report == null) {
            throw new IllegalArgumentException(
                    "--fp8-statistics: expected --report, which they are written into, got none");
        }
    }

    /**
     * Checks the margins against the device.
     *
     * @throws IllegalArgumentException when one leaves norms no multiprocessor, or products fewer than two; the text names the option
     */
    void requireBelow(int multiprocessors) {
        requireLeft("--sm-margin", norms, multiprocessors, 1);
        requireLeft("--product-sm-margin", products, multiprocessors, 2);
    }

    private static void requireLeft(String option, int margin, int multiprocessors, int least) {
        if (margin > multiprocessors - least) {
            throw new IllegalArgumentException(option + ": expected 0 to " + (multiprocessors - least)
                    + ", which leaves " + least + " of the device's " + multiprocessors + " multiprocessors, got "
                    + margin);
        }
    }

    /** Returns how the work gets to the device, of a GPU or not. */
    ModelSetup.Enqueuing of(boolean gpu, RankOptions ranks, OptimizerOptions updates) {
        boolean captured = graph == GraphChoice.ON
                || (graph == GraphChoice.AUTO && gpu && ranks.count() == 1 && updates.isCapturable());
        return new ModelSetup.Enqueuing(
                productPlan,
                new MultiprocessorMargin(norms, products),
                captured ? ModelSetup.Steps.CAPTURED : ModelSetup.Steps.ENQUEUED,
                fp8Statistics);
    }
}
