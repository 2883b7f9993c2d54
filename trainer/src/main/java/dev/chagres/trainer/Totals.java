package dev.chagres.trainer;

import java.util.ArrayList;
import java.util.List;

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

    /** Share of the peak rate, NaN when that is unknown. */
    double mfu(double peakFlops) {
        return flops / (millis / 1e3) / peakFlops;
    }
}
