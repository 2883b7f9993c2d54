package dev.chagres.trainer;

import dev.chagres.batch.Batch;
import dev.chagres.batch.StepResult;
import java.util.List;
import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.EventType;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/**
 * One step as it is reported; filled again for later steps.
 *
 * <p>Threading: one thread at a time.
 */
public final class StepMetrics {
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
    private double hfu;
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
     * @param recomputed operations that are made once more, as a share of the model's
     * @param ofRanks what each of several ranks says; nothing on one rank
     */
    void complete(StepResult result, double peakFlops, double recomputed, long memoryBytes, List<RankStep> ofRanks) {
        this.skipped = false;
        this.loss = result.loss();
        this.gradNorm = result.gradNorm();
        this.stepMillis = Math.max(SHORTEST_MILLIS, result.millis());
        this.tokensPerSecond = tokens / (stepMillis / 1e3);
        this.mfu = flops / (stepMillis / 1e3) / peakFlops;
        this.hfu = mfu * (1 + recomputed);
        this.memoryBytes = memoryBytes;
        this.ranks = ofRanks;
    }

    /** Writes an event of JDK Flight Recorder, where a recording wants it; otherwise makes no object. */
    void emit() {
        if (FlightRecorder.isInitialized() && StepEvent.TYPE.isEnabled()) {
            var event = new StepEvent();
            event.step = step;
            event.tokens = tokens;
            event.loss = loss;
            event.stepMillis = stepMillis;
            event.teraflops = teraflops();
            event.memory = memoryBytes;
            event.commit();
        }
    }

    /**
     * A step whose result was read.
     *
     * <p>Threading: one thread at a time.
     */
    @Name("dev.chagres.Step")
    @Label("Training step")
    @Description("The result of a training step was read")
    @Category("Chagres")
    @StackTrace(false)
    static final class StepEvent extends Event {
        private static final EventType TYPE = EventType.getEventType(StepEvent.class);

        @Label("Step")
        int step;

        @Label("Tokens")
        int tokens;

        @Label("Loss")
        double loss;

        @Label("Milliseconds by the device's clock")
        double stepMillis;

        @Label("TFLOP/s of the model")
        double teraflops;

        @Label("Most device memory held")
        @DataAmount
        long memory;
    }

    /** Returns its number, counted from 1 over the runs before, too. */
    public int step() {
        return step;
    }

    /** Says that the step changed nothing, since its gradients were not finite. */
    void skip() {
        skipped = true;
    }

    /** Returns whether the step changed nothing, since its gradients were not finite. */
    public boolean isSkipped() {
        return skipped;
    }

    /** Returns how many tokens came from the data. */
    public int tokens() {
        return tokens;
    }

    /** Returns how many tokens were computed, padding included. */
    public int paddedTokens() {
        return paddedTokens;
    }

    /** Returns the floating-point operations of forward and backward. */
    public double flops() {
        return flops;
    }

    /** Returns the rate of its update. */
    public float learningRate() {
        return learningRate;
    }

    /** Returns the mean loss of its labelled tokens; of a skipped step, this may be no number. */
    public double loss() {
        return loss;
    }

    /** Returns the norm of all gradients before clipping; of a skipped step, this is no finite number. */
    public double gradNorm() {
        return gradNorm;
    }

    /** Returns the milliseconds from the end of the step before to the end of this one, by the device's clock. */
    public double stepMillis() {
        return stepMillis;
    }

    /** Returns the unpadded tokens per second. */
    public double tokensPerSecond() {
        return tokensPerSecond;
    }

    /** Returns the share of the device's peak rate that the model's operations took, NaN when the peak is unknown. */
    public double mfu() {
        return mfu;
    }

    /** Returns the share of the peak rate that all products and attention took, those that backward makes once more included; NaN likewise. */
    public double hfu() {
        return hfu;
    }

    /** Returns the model's operations by time, in 10^12 a second, of all ranks together. */
    public double teraflops() {
        return flops / (stepMillis / 1e3) / 1e12;
    }

    /** Returns the most device memory held so far; of several ranks, that of the one that has held most. */
    public long memoryBytes() {
        return memoryBytes;
    }

    /** Returns what each of several ranks says, in their order; nothing on one rank. */
    public List<RankStep> ranks() {
        return ranks;
    }
}
