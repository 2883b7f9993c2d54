package dev.chagres.spark;

import dev.chagres.models.esm.Esm2Size;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/**
 * The program that {@code spark-submit} starts: trains ESM-2 on FASTA files, or on those that travel with the models.
 *
 * <p>Exit statuses: 0 done, 1 the job failed, 2 the options are wrong.
 *
 * <p>Threading: one thread at a time.
 */
@Command(
        name = "train-on-spark",
        mixinStandardHelpOptions = true,
        sortOptions = false,
        description = "Trains ESM-2 as a barrier stage of Spark, a rank an executor.")
public final class TrainOnSpark implements Callable<Integer> {
    private static final BarrierConfig DEFAULTS = BarrierConfig.tiny();

    @Option(names = "--ranks", paramLabel = "N", required = true, description = "executors, each of which is a rank")
    private int ranks;

    @Option(
            names = "--fasta",
            paramLabel = "PATH",
            description = "files, folders or patterns that Spark can read; default: 398 sequences of UniProtKB")
    private @Nullable String fasta;

    @Option(names = "--model", paramLabel = "SIZE", description = "tiny, 8M, 35M, 150M, 650M, 3B, 15B; default: tiny")
    private String model = DEFAULTS.size().label();

    @Option(
            names = "--strategy",
            paramLabel = "NAME",
            description = "what a rank keeps: ddp, zero1, zero2, zero3; default: ddp")
    private String strategy = DEFAULTS.strategy().toString();

    @Option(names = "--context", paramLabel = "TOKENS", description = "most tokens of a sequence; default: 128")
    private int context = DEFAULTS.context();

    @Option(
            names = "--tokens-per-rank",
            paramLabel = "TOKENS",
            description = "most tokens of a rank in a step, a multiple of 16; default: 512")
    private int tokensPerRank = DEFAULTS.tokensPerRank();

    @Option(names = "--learning-rate", paramLabel = "RATE", description = "after the warm-up; default: 0.001")
    private float learningRate = DEFAULTS.learningRate();

    @Option(names = "--warm-up-steps", paramLabel = "STEPS", description = "default: 10")
    private int warmUpSteps = DEFAULTS.warmUpSteps();

    @Option(names = "--seed", paramLabel = "SEED", description = "of first weights and masks; default: 42")
    private long seed = DEFAULTS.seed();

    @Option(
            names = "--timeout-seconds",
            paramLabel = "SECONDS",
            description = "how long a rank may be silent; default: 300")
    private long timeoutSeconds = DEFAULTS.timeout().toSeconds();

    @Option(
            names = "--save",
            paramLabel = "FILE",
            description = "weights and optimizer state, written on the host of rank 0")
    private @Nullable String save;

    @Spec
    private CommandSpec spec = CommandSpec.create();

    TrainOnSpark() {}

    /** Runs the command; ends the process where it fails. */
    public static void main(String[] arguments) {
        int status = new CommandLine(new TrainOnSpark()).execute(arguments);
        if (status != 0) {
            System.exit(status);
        }
    }

    @Override
    public Integer call() {
        BarrierConfig config = config();
        try (var spark = new JavaSparkContext(new SparkConf().setIfMissing("spark.app.name", "Chagres"))) {
            JavaRDD<String> sequences =
                    fasta == null ? FastaRecords.shipped(spark, ranks) : FastaRecords.read(spark, fasta);
            show(BarrierTraining.train(
                    sequences.getNumPartitions() == ranks ? sequences : sequences.repartition(ranks), config));
        }
        return 0;
    }

    private void show(TrainingReport report) {
        for (RankReport rank : report.ranks()) {
            System.out.println(
                    "rank " + rank.rank() + ", executor " + rank.executor() + ": " + rank.sequences() + " sequences");
        }
        List<Double> losses = report.losses();
        for (int step = 0; step < losses.size(); step++) {
            System.out.printf(
                    Locale.ROOT,
                    "step %d: loss %.6f, gradients' norm %.6f%n",
                    step + 1,
                    losses.get(step),
                    report.gradNorms().get(step));
        }
    }

    private BarrierConfig config() {
        try {
            if (ranks < 1) {
                throw new IllegalArgumentException("--ranks: expected at least 1, got " + ranks);
            }
            return new BarrierConfig(
                    chosen("--model", model, Esm2Size.values()),
                    chosen("--strategy", strategy, ParallelStrategy.values()),
                    context,
                    tokensPerRank,
                    learningRate,
                    warmUpSteps,
                    seed,
                    Duration.ofSeconds(timeoutSeconds),
                    save);
        } catch (IllegalArgumentException e) {
            throw new ParameterException(spec.commandLine(), String.valueOf(e.getMessage()), e);
        }
    }

    private static <T> T chosen(String option, String word, T[] values) {
        return Arrays.stream(values)
                .filter(value -> value.toString().equals(word))
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException(
                        option + ": expected one of " + Arrays.toString(values) + ", got " + word));
    }
}
