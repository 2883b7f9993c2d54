package dev.chagres.trainer;

import dev.chagres.batch.Batch;
import dev.chagres.batch.StepResult;
import java.util.List;

/**
 * One step as it is reported; filled again for later steps.
 *
 * <p>Threading: one thread at a time.
 */
final class StepMetrics {
    /** What a device's clock does not resolve still took time: rates stay finite. */
    private static final double SHORTEST_MILLIS = 1e-6;

    private int step;
    private boolean skipped;
    private int tokens;
    private int paddedTokens;
    private double flops;
    private float learningRate;
    private double loss;
    private double gradNorm;
    private double stepMillis;
    private double tokensPerSecond;
    private double mfu;
    private long memoryBytes;
    private List<RankStep> ranks = List.of();

    /** Takes what is known of a step before it runs. */
    void begin(int step, Batch batch, double flops, float learningRate) {
        this.step = step;
        this.tokens = batch.tokens();
        this.paddedTokens = batch.paddedTokens();
        this.flops = flops;
        this.learningRate = learningRate;
    }

    /**
     * Takes what is known once it ran.
     *
     * @param peakFlops the device's rate, NaN when unknown
     * @param ofRanks what each of several ranks says; nothing on one rank
     */
    void complete(StepResult result, double peakFlops, long memoryBytes, List<RankStep> ofRanks) {
        this.skipped = false;
        this.loss = result.loss();
        this.gradNorm = result.gradNorm();
        this.stepMillis = Math.max(SHORTEST_MILLIS, result.millis());
        this.tokensPerSecond = tokens / (stepMillis / 1e3);
        this.mfu = flops / (stepMillis / 1e3) / peakFlops;
        this.memoryBytes = memoryBytes;
        this.ranks = ofRanks;
    }

    /** Counted from 1. */
    int step() {
        return step;
    }

    /** Says that the step changed nothing, since its gradients were not finite. */
    void skip() {
        skipped = true;
    }

    boolean isSkipped() {
        return skipped;
    }

    /** Tokens that came from the data. */
    int tokens() {
        return tokens;
    }

    /** Tokens that were computed, padding included. */
    int paddedTokens() {
        return paddedTokens;
    }

    double flops() {
        return flops;
    }

    float learningRate() {
        return learningRate;
    }

    /** Of a skipped step, this may be no number. */
    double loss() {
        return loss;
    }

    /** Of a skipped step, this is no finite number. */
    double gradNorm() {
        return gradNorm;
    }

    double stepMillis() {
        return stepMillis;
    }

    /** Unpadded tokens per second. */
    double tokensPerSecond() {
        return tokensPerSecond;
    }

    /** Share of the device's peak rate that the model's operations took, NaN when the peak is unknown. */
    double mfu() {
        return mfu;
    }

    long memoryBytes() {
        return memoryBytes;
    }

    /** What each of several ranks says, in their order; nothing on one rank. */
    List<RankStep> ranks() {
        return ranks;
    }
}
