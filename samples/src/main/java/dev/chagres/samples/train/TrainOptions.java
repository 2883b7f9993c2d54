package dev.chagres.samples.train;

import dev.chagres.ops.ProductPlan;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.samples.data.FastaSource;
import dev.chagres.samples.data.MaskedProteins;
import dev.chagres.samples.esm.Esm2Size;
import dev.chagres.train.BatchLayout;
import dev.chagres.train.BatchShape;
import dev.chagres.train.WholeFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** The command's options; those left out get the platform's defaults in {@link #plan}. */
final class TrainOptions {
    private static final int GPU_TOKENS = 16_384;
    private static final int CPU_TOKENS = 2_048;
    private static final int DEFAULT_STEPS = 200;
    private static final float LAST_RATE = 0.1f;

    /** Values of {@code --packing}. */
    enum Packing {
        ON,
        OFF;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

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

    /** Values of {@code --provider}. */
    enum ProviderChoice {
        AUTO,
        CUDA,
        REFERENCE;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    @Option(
            names = "--model",
            converter = OptionWords.OfSize.class,
            paramLabel = "SIZE",
            description = "tiny, 8M, 35M, 150M, 650M, 3B or 15B (default: tiny on a CPU, 8M on a GPU)")
    private @Nullable Esm2Size model;

    @Option(
            names = "--fasta",
            converter = FileOption.class,
            paramLabel = "FILE",
            description = "protein sequences, plain or gz (default: 398 of UniProtKB/Swiss-Prot that come along)")
    private @Nullable Path fasta;

    @Option(names = "--steps", paramLabel = "N", description = "updates to make (default: 200)")
    private int steps = DEFAULT_STEPS;

    @Option(
            names = "--tokens-per-step",
            paramLabel = "N",
            description = "token budget of a step, a multiple of 16 (default: 16384 on a GPU, 2048 on a CPU)")
    private @Nullable Integer tokensPerStep;

    @Option(
            names = "--accumulate",
            paramLabel = "N",
            description = "micro-batches of a step, each of 1/N of its tokens, whose gradients are summed: less memory"
                    + " (default: 1)")
    private int accumulate = 1;

    @Mixin
    private final RankOptions ranks = new RankOptions();

    @Option(
            names = "--context",
            paramLabel = "N",
            description = "longest sequence in tokens; longer ones give a stretch (default: 1024)")
    private int context = 1024;

    @Option(
            names = "--packing",
            converter = OptionWords.OfPacking.class,
            paramLabel = "on|off",
            description = "sequences without gaps, or one a row filled up to the context (default: on)")
    private Packing packing = Packing.ON;

    @Option(
            names = "--recipe",
            converter = OptionWords.OfRecipe.class,
            paramLabel = "bf16|fp16|fp32|fp8-delayed|fp8-current|fp8-block",
            description = "precision of the layers (default: bf16 on a GPU, fp32 on a CPU)")
    private @Nullable TrainingRecipe recipe;

    @Option(
            names = "--product-plans",
            converter = OptionWords.OfProductPlan.class,
            paramLabel = "first|measured",
            description = "of cuBLASLt's kernels for a product the one that it names first, or the fastest, timed once"
                    + " before the first step (default: measured where steps are captured, for their sizes come again)")
    private @Nullable ProductPlan productPlan;

    @Option(
            names = "--graph",
            converter = OptionWords.OfGraph.class,
            paramLabel = "on|off|auto",
            description =
                    "capture each step once and replay it; on: of ranks with --strategy ddp or tp, too; auto: on a GPU, of"
                            + " one rank (default: auto)")
    private GraphChoice graph = GraphChoice.AUTO;

    @Option(
            names = "--fp8-statistics",
            paramLabel = "N",
            description = "measure the casts to eight bits of each Nth step for the report; steps are then not captured"
                    + " (default: 0, none)")
    private int fp8Statistics;

    @Option(
            names = "--learning-rate",
            paramLabel = "RATE",
            description = "highest learning rate (default: 4e-4, tiny: 4e-3)")
    private @Nullable Float learningRate;

    @Option(
            names = "--warm-up-steps",
            paramLabel = "N",
            description = "steps over which the rate rises to its highest (default: a tenth of the steps)")
    private @Nullable Integer warmUpSteps;

    @Option(
            names = "--decay",
            converter = OptionWords.OfDecay.class,
            paramLabel = "constant|linear|cosine",
            description = "how the rate falls from then on, linear and cosine to a tenth (default: linear)")
    private LearningRateSchedule.Decay decay = LearningRateSchedule.Decay.LINEAR;

    @Option(
            names = "--seed",
            paramLabel = "N",
            description = "data order, masks and first weights follow from it (default: 42)")
    private long seed = 42;

    @Option(
            names = "--provider",
            converter = OptionWords.OfProvider.class,
            paramLabel = "NAME",
            description = "cuda, reference or auto: cuda where there is an NVIDIA driver (default: auto)")
    private @Nullable ProviderChoice provider;

    @Option(
            names = "--report",
            converter = FileOption.class,
            paramLabel = "FILE",
            description = "write JSON Lines: the run, then each step")
    private @Nullable Path report;

    @Option(names = "--plot", converter = FileOption.class, paramLabel = "FILE.png", description = "draw the loss")
    private @Nullable Path plot;

    @Mixin
    private final SaveOptions saving = new SaveOptions();

    /** Returns the provider that was asked for, null when the system property is to decide. */
    @Nullable
    String provider() {
        return provider == null ? null : provider.toString();
    }

    /**
     * Checks what does not depend on the platform.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check() {
        requireAtLeast("--steps", steps, 1);
        if (tokensPerStep != null) {
            requireAtLeast("--tokens-per-step", tokensPerStep, BatchShape.TOKEN_MULTIPLE);
        }
        requireAtLeast("--accumulate", accumulate, 1);
        ranks.check();
        if ((long) accumulate * dataRanks() > Integer.MAX_VALUE) {
            throw new IllegalArgumentException("--accumulate, --ranks: expected at most " + Integer.MAX_VALUE
                    + " micro-batches in all, got " + accumulate + " on each of " + dataRanks());
        }
        if (graph == GraphChoice.ON && !ranks.layout().isCapturable()) {
            throw new IllegalArgumentException(
                    "--graph: expected off or auto, or --strategy ddp or tp beside it, for steps of ranks that share out"
                            + " weights, gradients, layers or tokens are not captured, got on beside "
                            + ranks.layout());
        }
        if (learningRate != null && !(learningRate > 0 && learningRate < Float.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("--learning-rate: expected a positive number, got " + learningRate);
        }
        if (warmUpSteps != null && (warmUpSteps < 0 || warmUpSteps > steps)) {
            throw new IllegalArgumentException(
                    "--warm-up-steps: expected 0 to " + steps + ", the number of steps, got " + warmUpSteps);
        }
        requireName("--fasta", fasta);
        requireName("--report", report);
        requireName("--plot", plot);
        requirePicture("--plot", plot);
        requireDifferent("--report", report, "--fasta", fasta);
        requireDifferent("--plot", plot, "--fasta", fasta);
        requireDifferent("--plot", plot, "--report", report);
        requireOtherPart("--report", report, "--fasta", fasta);
        requireOtherPart("--plot", plot, "--fasta", fasta);
        requireOtherPart("--plot", plot, "--report", report);
        requireOtherPart("--report", report, "--plot", plot);
        checkSaving();
        if (context < MaskedProteins.SHORTEST_CONTEXT) {
            throw new IllegalArgumentException("--context: expected at least " + MaskedProteins.SHORTEST_CONTEXT
                    + " (<cls>, one residue, <eos>), got " + context);
        }
        checkStatistics();
        if (tokensPerStep != null && ranks.count() == 1) { // Of several, plan(…) first looks whether they have devices.
            var _ = shape(tokensPerStep);
        }
    }

    private void checkSaving() {
        saving.check();
        requireDifferent("--save", saving.save(), "--fasta", fasta);
        requireDifferent("--save", saving.save(), "--report", report);
        requireDifferent("--save", saving.save(), "--plot", plot);
        requireDifferent("--report", report, "--resume", saving.resume());
        requireDifferent("--plot", plot, "--resume", saving.resume());
    }

    private void checkStatistics() {
        requireAtLeast("--fp8-statistics", fp8Statistics, 0);
        if (fp8Statistics == 0) {
            return;
        }
        if (recipe == null || recipe.eightBit().isEmpty()) {
            throw new IllegalArgumentException(
                    "--fp8-statistics: expected --recipe fp8-delayed, fp8-current or fp8-block,"
                            + " whose casts are measured, got " + (recipe == null ? "none" : recipe));
        }
        if (report == null) {
            throw new IllegalArgumentException(
                    "--fp8-statistics: expected --report, which they are written into, got none");
        }
        if (graph == GraphChoice.ON) {
            throw new IllegalArgumentException("--graph: expected off or auto beside --fp8-statistics, for what a graph"
                    + " replays is not measured, got on");
        }
    }

    private Steps steps(boolean gpu) {
        boolean captured = graph == GraphChoice.ON
                || (graph == GraphChoice.AUTO && gpu && fp8Statistics == 0 && ranks.count() == 1);
        return captured ? Steps.CAPTURED : Steps.ENQUEUED;
    }

    /**
     * Returns the plan, with the platform's defaults where an option was left out.
     *
     * @param devices how many the platform has
     * @throws IllegalArgumentException when an option does not fit the platform; the text names it
     */
    TrainingPlan plan(boolean gpu, int devices) {
        requireDevices(gpu, devices);
        Esm2Size size = model != null ? model : gpu ? Esm2Size.M8 : Esm2Size.TINY;
        ranks.layout().requireHeads(ranks.sharingOption(), size);
        ranks.layout().requireStages(ranks.sharingOption(), size, fp8Statistics);
        ranks.requireLayout(layout());
        TrainingRecipe precision = recipe != null ? recipe : gpu ? TrainingRecipe.BF16 : TrainingRecipe.FP32;
        float peak = learningRate != null ? learningRate : size == Esm2Size.TINY ? 4e-3f : 4e-4f;
        int warmUp = warmUpSteps != null ? warmUpSteps : steps / 10;
        BatchShape shape = shape(gpu ? GPU_TOKENS : CPU_TOKENS);
        Steps enqueuing = steps(gpu);
        return new TrainingPlan(
                size,
                fasta == null ? FastaSource.shipped() : FastaSource.of(fasta),
                shape,
                precision,
                productPlan != null ? productPlan : defaultProductPlan(enqueuing),
                ranks.layout(),
                enqueuing,
                fp8Statistics,
                steps,
                new LearningRateSchedule(peak, warmUp, steps, decay, LAST_RATE),
                seed,
                saving.plan(),
                ranks.isSilent() ? null : report,
                ranks.isSilent() ? null : plot);
    }

    /** Returns whether this process is one of several ranks, and another one tells of the run. */
    boolean isSilent() {
        return ranks.isSilent();
    }

    /** Says that a launcher is about to start so many processes with these options. */
    void toLaunch(int processes) {
        ranks.toLaunch(processes);
    }

    /** Returns which device of this host is this process's. */
    int device() {
        return ranks.device();
    }

    private static ProductPlan defaultProductPlan(Steps enqueuing) {
        return enqueuing == Steps.CAPTURED ? ProductPlan.MEASURED : ProductPlan.FIRST;
    }

    private BatchShape shape(int defaultTokens) {
        if (tokensPerStep == null && context > roundUp(context)) {
            throw new IllegalArgumentException("--context: expected at most " + roundUp(context)
                    + ", as many tokens as a step can have, got " + context);
        }
        int budget = tokensPerStep != null ? tokensPerStep : Math.max(defaultTokens, roundUp(context));
        requireShares(budget);
        try {
            return new BatchShape(layout(), budget, context, accumulate * dataRanks());
        } catch (IllegalArgumentException e) {
            String text = String.valueOf(e.getMessage());
            throw new IllegalArgumentException(
                    text.replace("tokensPerStep", "--tokens-per-step").replace("context:", "--context:"), e);
        }
    }

    private void requireDevices(boolean gpu, int devices) {
        // The reference has a device in each process.
        if (ranks.count() > devices && (!ranks.areProcesses() || (gpu && ranks.isToLaunch()))) {
            throw new IllegalArgumentException(ranks.countOption() + ": expected 1 to " + devices
                    + ", for each rank needs a device of its own and "
                    + (gpu ? "this process sees " + devices + " GPUs" : "the CPU reference has " + devices)
                    + ", got " + ranks.count()
                    + (gpu ? "" : "; the variable CHAGRES_REFERENCE_DEVICES=" + ranks.count() + " gives it more"));
        }
    }

    /** Returns among how many ranks the micro-batches of a step are shared out. */
    private int dataRanks() {
        return ranks.layout().dataRanks();
    }

    /** Checks that the tokens of a step can be shared out among micro-batches that each have room for the longest sequence. */
    private void requireShares(int budget) {
        long microBatches = (long) accumulate * dataRanks();
        long multiple = microBatches * BatchShape.TOKEN_MULTIPLE;
        long least = microBatches * roundUp(context);
        if (microBatches == 1 || (budget % multiple == 0 && budget >= least)) {
            return;
        }
        boolean counted = dataRanks() == ranks.count() && !ranks.countOption().equals("--mesh");
        String copies = counted ? ranks.countOption() + " " + dataRanks() : dataRanks() + " copies of --mesh";
        String shared = dataRanks() == 1
                ? "--accumulate " + accumulate
                : accumulate == 1 ? copies : "--accumulate " + accumulate + " on each of " + copies;
        long fitting = Math.max(least, budget / multiple * multiple);
        throw new IllegalArgumentException("--tokens-per-step: expected a multiple of " + multiple + " from " + least
                + " on, for " + microBatches + " micro-batches share it (" + shared + "), each with a multiple of "
                + BatchShape.TOKEN_MULTIPLE + " tokens and room for a sequence of --context " + context + "; got "
                + budget
                + (tokensPerStep == null ? ", the default" : "") + "; give "
                + (fitting <= Integer.MAX_VALUE
                        ? "--tokens-per-step " + fitting + ", or less of the others"
                        : "less of the others"));
    }

    private BatchLayout layout() {
        return packing == Packing.ON ? BatchLayout.PACKED : BatchLayout.PADDED;
    }

    private static int roundUp(int context) {
        int multiple = BatchShape.TOKEN_MULTIPLE;
        return (int) Math.min(
                (context + (long) multiple - 1) / multiple * multiple, Integer.MAX_VALUE / multiple * multiple);
    }

    static void requireAtLeast(String option, int value, int least) {
        if (value < least) {
            throw new IllegalArgumentException(option + ": expected at least " + least + ", got " + value);
        }
    }

    static void requireName(String option, @Nullable Path file) {
        if (file != null && (file.getFileName() == null || file.toString().isEmpty())) {
            throw new IllegalArgumentException(option + ": expected the name of a file, got "
                    + (file.toString().isEmpty() ? "an empty one" : file));
        }
    }

    static void requirePicture(String option, @Nullable Path file) {
        requireName(option, file);
        if (file != null && !file.toString().toLowerCase(Locale.ROOT).endsWith(".png")) {
            throw new IllegalArgumentException(option + ": expected a name that ends with .png, got " + file);
        }
    }

    static void requireDifferent(String option, @Nullable Path file, String other, @Nullable Path otherFile) {
        if (file == null || otherFile == null) {
            return;
        }
        if (isSame(file, otherFile)) {
            throw new IllegalArgumentException(
                    option + ": " + file + " is the file of " + other + "; name another one");
        }
    }

    /** Refuses a file that would be written over another one while it is not whole yet. */
    private static void requireOtherPart(String option, @Nullable Path file, String other, @Nullable Path otherFile) {
        if (file != null && otherFile != null && isSame(WholeFile.part(file), otherFile)) {
            throw new IllegalArgumentException(option + ": " + file + " is called " + otherFile
                    + " until it is whole, and that is the file of " + other + "; name another one");
        }
    }

    private static boolean isSame(Path file, Path other) {
        try {
            return Files.isSameFile(file, other);
        } catch (IOException e) {
            return file.toAbsolutePath()
                    .normalize()
                    .equals(other.toAbsolutePath().normalize());
        }
    }
}
