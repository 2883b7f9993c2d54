package dev.chagres.trainer;

import dev.chagres.nccl.Operation;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Sums over steps, and the rates that follow from them.
 *
 * <p>Threading: one thread at a time.
 */
final class Totals {
    private int steps;
    private int skipped;
    private double losses;
    private int lossCount;
    private long tokens;
    private long paddedTokens;
    private double flops;
    private double millis;
    private long memoryBytes;
    private final List<RankTotals> ranks = new ArrayList<>();

    void add(StepMetrics step) {
        add(step.tokens(), step.paddedTokens(), step.flops(), step.stepMillis());
        if (Double.isFinite(step.loss())) {
            losses += step.loss();
            lossCount++;
        }
        if (step.isSkipped()) {
            skipped++;
        }
        memoryBytes = Math.max(memoryBytes, step.memoryBytes());
        List<RankStep> parts = step.ranks();
        for (int i = 0; i < parts.size(); i++) { // An iterator would be an object a step.
            addRank(parts.get(i));
        }
    }

    private void addRank(RankStep part) {
        for (RankTotals known : ranks) {
            if (known.rank() == part.rank()) {
                known.add(part);
                return;
            }
        }
        RankTotals made = new RankTotals(part.rank());
        made.add(part);
        ranks.add(made);
    }

    /** Adds a step of which no more is known. */
    void add(int stepTokens, int stepPaddedTokens, double stepFlops, double stepMillis) {
        steps++;
        tokens += stepTokens;
        paddedTokens += stepPaddedTokens;
        flops += stepFlops;
        millis += stepMillis;
    }

    void clear() {
        steps = 0;
        skipped = 0;
        losses = 0;
        lossCount = 0;
        tokens = 0;
        paddedTokens = 0;
        flops = 0;
        millis = 0;
        memoryBytes = 0;
        ranks.clear();
    }

    int steps() {
        return steps;
    }

    /** Steps that changed nothing, since their gradients were not finite. */
    int skipped() {
        return skipped;
    }

    long tokens() {
        return tokens;
    }

    double millis() {
        return millis;
    }

    long memoryBytes() {
        return memoryBytes;
    }

    /** What each of several ranks did; nothing on one rank. */
    List<RankTotals> ranks() {
        return ranks;
    }

    /** Over the steps whose loss is a number; NaN without one. */
    double meanLoss() {
        return losses / lossCount;
    }

    /** Unpadded tokens a second. */
    double tokensPerSecond() {
        return tokens / (millis / 1e3);
    }

    /** Share of the computed tokens that are padding. */
    double paddingShare() {
        return 1 - (double) tokens / paddedTokens;
    }

    /** Operations of the model by time, in 10^12 a second. */
    double teraflops() {
        return flops / (millis / 1e3) / 1e12;
    }

    /** Share of the peak rate, NaN when that is unknown. */
    double mfu(double peakFlops) {
        return flops / (millis / 1e3) / peakFlops;
    }

    /**
     * Sums over the steps of one of several ranks.
     *
     * <p>Threading: one thread at a time.
     */
    static final class RankTotals {
        private static final long KIB = 1024;

        private final int rank;
        private final Map<Operation, Long> bytes = new EnumMap<>(Operation.class);
        private double millis;

        RankTotals(int rank) {
            this.rank = rank;
        }

        void add(RankStep step) {
            millis += step.millis();
            step.bytes().forEach((operation, moved) -> bytes.merge(operation, moved, Long::sum));
        }

        int rank() {
            return rank;
        }

        /** Says how long the steps took, and what was moved: {@code rank 0: 1.5 s, allReduce 12.0 MiB}. */
        @Override
        public String toString() {
            String moved = bytes.entrySet().stream()
                    .map(entry -> ", " + entry.getKey() + " " + size(entry.getValue()))
                    .collect(Collectors.joining());
            return String.format(Locale.ROOT, "rank %d: %.1f s%s", rank, millis / 1e3, moved);
        }

        /** Returns a number of bytes in a unit of which it has at least one. */
        private static String size(long bytes) {
            if (bytes < KIB) {
                return bytes + " B";
            }
            return bytes < KIB * KIB
                    ? String.format(Locale.ROOT, "%,.1f KiB", bytes / (double) KIB)
                    : String.format(Locale.ROOT, "%,.1f MiB", bytes / (double) (KIB * KIB));
        }
    }

    /**
     * The last steps of a run, whose rate is the one that it goes on at: the first ones may have waited for files and for
     * libraries that begin to work.
     *
     * <p>Threading: one thread at a time.
     */
    static final class RecentSteps {
        private static final int MOST = 100;

        private final int[] tokens = new int[MOST];
        private final int[] paddedTokens = new int[MOST];
        private final double[] flops = new double[MOST];
        private final double[] millis = new double[MOST];
        private int steps;

        void add(StepMetrics step) {
            int place = steps++ % MOST;
            tokens[place] = step.tokens();
            paddedTokens[place] = step.paddedTokens();
            flops[place] = step.flops();
            millis[place] = step.stepMillis();
        }

        /** Returns the sums over the last half of the steps, over 100 at most. */
        Totals lastHalf() {
            var totals = new Totals();
            int count = Math.min(MOST, (steps + 1) / 2);
            for (int step = steps - count; step < steps; step++) {
                int place = step % MOST;
                totals.add(tokens[place], paddedTokens[place], flops[place], millis[place]);
            }
            return totals;
        }
    }
}
