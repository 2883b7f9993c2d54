package dev.chagres.samples.tour;

import dev.chagres.bindings.ForeignText;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;

/** Lists the samples, or runs those that are named: {@code ./chagres sample [N|NAME ...]}. */
public final class Tour {
    /** What a sample does when it is run; it throws when its result is wrong. */
    @FunctionalInterface
    private interface Program {
        void run() throws Exception;
    }

    private record Sample(int number, String name, String what, Program program) {
        boolean answersTo(String word) {
            return word.equals(Integer.toString(number))
                    || word.toLowerCase(Locale.ROOT).equals(name);
        }
    }

    private static final List<Sample> SAMPLES = List.of(
            new Sample(1, "device", "open a device, copy numbers there and back", Sample01Device::run),
            new Sample(2, "layernorm", "a layer norm against plain Java", Sample02LayerNorm::run),
            new Sample(3, "product", "a matrix product in BFLOAT16", Sample03Product::run),
            new Sample(4, "attention", "attention over packed sequences", Sample04PackedAttention::run),
            new Sample(5, "layer", "a TransformerLayer learns, forward and backward", Sample05TransformerLayer::run),
            new Sample(6, "allreduce", "an all-reduce of ranks as threads", Sample06AllReduce::run),
            new Sample(
                    7, "epilogue", "a product with bias and GELU, without a layer", Sample07ProductWithEpilogue::run),
            new Sample(
                    8,
                    "fusedattention",
                    "fused attention, forward and backward, without a layer",
                    Sample08FusedAttention::run),
            new Sample(9, "ownlayer", "your own layer, in a stack", Sample09OwnLayer::run),
            new Sample(10, "float8", "a product in FP8, quantized by hand", Sample10Float8Product::run),
            new Sample(11, "ownmodel", "your own model, trained on 1 and 4 ranks", Sample11OwnModel::run),
            new Sample(12, "cudnngraph", "product, bias, GELU, residual as a cuDNN graph", Sample12CudnnGraph::run),
            new Sample(13, "ownscores", "attention with your own change of scores", Sample13OwnScores::run),
            new Sample(14, "embeddings", "embeddings of proteins over HTTP", Sample14Embeddings::run));

    private Tour() {}

    /** Runs the samples that {@code words} name by number or name, none where a word names none; without any, lists them. */
    public static void main(String[] words) throws Exception {
        int status = run(System.err, words);
        if (status != 0) {
            System.exit(status);
        }
    }

    /** The same, and returns the exit status. */
    static int run(PrintStream err, String... words) throws Exception {
        if (words.length == 0) {
            for (Sample sample : SAMPLES) {
                System.out.printf(Locale.ROOT, "%2d  %-14s  %s%n", sample.number, sample.name, sample.what);
            }
            return 0;
        }
        List<Sample> named;
        try {
            named = Arrays.stream(words).map(Tour::named).toList();
        } catch (IllegalArgumentException e) {
            err.println("sample: " + e.getMessage());
            return 2;
        }
        for (Sample sample : named) {
            sample.program.run();
        }
        return 0;
    }

    private static Sample named(String word) {
        return SAMPLES.stream()
                .filter(sample -> sample.answersTo(word))
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException(
                        "none is called " + ForeignText.quoted(word) + "; without an argument they are listed"));
    }

    /** Returns {@code value} when the relative difference from {@code expected} is at most {@code tolerance}. */
    static double near(String what, double expected, double value, double tolerance) {
        double difference = Math.abs(value - expected) / Math.max(1e-12, Math.abs(expected));
        if (!(difference <= tolerance)) {
            throw new IllegalStateException(
                    what + ": expected " + expected + " within " + tolerance + ", got " + value);
        }
        return value;
    }

    /** Returns the norm of the difference over the norm of {@code expected}, when that is at most {@code tolerance}. */
    static double near(String what, float[] expected, float[] values, double tolerance) {
        double squares = 0;
        double differences = 0;
        for (int i = 0; i < expected.length; i++) {
            squares += expected[i] * (double) expected[i];
            differences += (values[i] - expected[i]) * (double) (values[i] - expected[i]);
        }
        double relative = Math.sqrt(differences / squares);
        if (!(relative <= tolerance)) {
            throw new IllegalStateException(
                    what + ": expected a relative difference of at most " + tolerance + ", got " + relative);
        }
        return relative;
    }
}
