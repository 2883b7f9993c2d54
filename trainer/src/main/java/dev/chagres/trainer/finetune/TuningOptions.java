package dev.chagres.trainer.finetune;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.models.data.HeldOut;
import dev.chagres.trainer.command.EnumOption;
import dev.chagres.trainer.command.HeldOutOption;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** The options of {@code finetune} about how it trains. */
final class TuningOptions {
    private static final int MULTIPLE = 16;

    @Option(names = "--epochs", paramLabel = "N", description = "times that the data are read (default: 3)")
    int epochs = 3;

    @Option(
            names = "--learning-rate",
            paramLabel = "R",
            description = "highest rate (default: 1e-4; with --lora 1e-3; with --text 2e-5, 2e-4)")
    @Nullable
    Float learningRate;

    @Option(names = "--tokens-per-step", paramLabel = "N", description = "tokens of a step (default: 4096)")
    int tokens = 4096;

    @Option(
            names = "--context",
            paramLabel = "N",
            description =
                    "longest sequence in tokens; of longer proteins the first residues count, longer texts are divided"
                            + " (default: 1024)")
    int context = 1024;

    @Option(
            names = "--metric",
            converter = Metric.Words.class,
            paramLabel = "NAME",
            description = "chooses the best evaluation: loss (default); of classes accuracy, macro-f1, matthews; of"
                    + " multi-label accuracy, micro-f1, macro-f1; of regression spearman, pearson, mse")
    Metric metric = Metric.LOSS;

    @Option(
            names = "--early-stopping",
            paramLabel = "PATIENCE",
            description = "end after so many evaluations in a row that are not better (default: 0: never)")
    int patience;

    @Option(names = "--eval-every", paramLabel = "N", description = "steps between evaluations (default: an epoch)")
    int every;

    @Option(
            names = "--eval-fraction",
            converter = HeldOutOption.class,
            paramLabel = "R",
            description =
                    "instead of --eval or --eval-text, hold out about this part of the sequences or texts, between 0 and 1, and evaluate"
                            + " them; which ones follows from their content alone (default: none)")
    private @Nullable HeldOut heldOut;

    @Option(
            names = "--graph",
            converter = GraphWords.class,
            paramLabel = "on|off",
            description = "capture steps as graphs and replay them (default: off)")
    Graph graph = Graph.OFF;

    @Option(names = "--ranks", paramLabel = "N", description = "devices of this host that train together (default: 1)")
    int ranks = 1;

    @Option(
            names = "--seed",
            paramLabel = "N",
            description = "of the head's first weights, and the data's order (default: 0)")
    long seed;

    /** Values of {@code --graph}. */
    enum Graph {
        ON,
        OFF
    }

    static final class GraphWords extends EnumOption<Graph> {
        GraphWords() {
            super(Graph.class);
        }
    }

    private record Number(String option, int value, int least) {}

    void check() {
        Float rate = learningRate;
        if (rate != null && !(rate >= 0 && rate <= Float.MAX_VALUE)) {
            throw new IllegalArgumentException("--learning-rate: expected a finite number of at least 0, got " + rate);
        }
        for (var number : List.of(
                new Number("--epochs", epochs, 1),
                new Number("--tokens-per-step", tokens, MULTIPLE),
                new Number("--context", context, 3),
                new Number("--early-stopping", patience, 0),
                new Number("--eval-every", every, 0),
                new Number("--ranks", ranks, 1))) {
            if (number.value < number.least) {
                throw new IllegalArgumentException(
                        number.option + ": expected at least " + number.least + ", got " + number.value);
            }
        }
    }

    /**
     * Returns what is held out of the data; null where nothing is.
     *
     * @param other option that names files to evaluate
     */
    @Nullable
    HeldOut heldOut(String other, boolean otherIsGiven) {
        if (heldOut != null && otherIsGiven) {
            throw new IllegalArgumentException("--eval-fraction: expected none beside " + other
                    + ", whose data are evaluated, got " + heldOut.fraction());
        }
        return heldOut;
    }

    /** Refuses a metric that the task does not have. */
    void ensureHas(Set<Metric> known, String task) {
        if (metric != Metric.LOSS && !known.contains(metric)) {
            throw new IllegalArgumentException("--metric: expected loss"
                    + known.stream().map(EnumOption::word).map(", "::concat).collect(Collectors.joining())
                    + " with " + task + ", got " + EnumOption.word(metric));
        }
    }

    /**
     * Returns the shape of a step.
     *
     * @param longest tokens of a sequence
     */
    BatchShape shape(int longest) {
        int kept = Math.min(context, longest);
        return new BatchShape(BatchLayout.PACKED, rounded(Math.max(tokens, kept * ranks)), kept, ranks);
    }

    /** Returns the shape of an evaluation, the same on every number of ranks. */
    static BatchShape evaluated(BatchShape step) {
        return new BatchShape(step.layout(), rounded(step.context()), step.context());
    }

    private static int rounded(int count) {
        return Math.ceilDiv(count, MULTIPLE) * MULTIPLE;
    }

    /**
     * What is learned, packed once.
     *
     * @param checksum of all tokens and labels in their order
     */
    record Packed(int steps, long checksum) {
        @Override
        public String toString() {
            return String.format("%d steps of checksum %08x", steps, checksum);
        }
    }

    /** Packs the data once. */
    static Packed packed(TokenSequences data, BatchShape shape) {
        int steps = 0;
        var checksum = new CRC32C();
        Batch batch = new Batch(shape);
        try (TokenSequences all = data;
                var packer = new SequencePacker(shape, all)) {
            while (packer.fill(batch)) {
                steps++;
                for (int i = 0; i < batch.microBatches(); i++) {
                    MicroBatch micro = batch.microBatch(i);
                    add(checksum, micro.ids(), micro.paddedTokens());
                    add(checksum, micro.labels(), micro.paddedTokens());
                }
            }
        }
        return new Packed(steps, checksum.getValue());
    }

    private static void add(CRC32C checksum, int[] numbers, int count) {
        ByteBuffer bytes = ByteBuffer.allocate(count * Integer.BYTES);
        bytes.asIntBuffer().put(numbers, 0, count);
        checksum.update(bytes);
    }
}
