package dev.chagres.batch;

/**
 * The results of one finished step; reused for later steps.
 *
 * <p>Threading: one thread at a time.
 */
public final class StepResult {
    private double loss;
    private double gradNorm;
    private double millis;

    /** Makes a result without values. */
    public StepResult() {}

    /**
     * Sets a step's values.
     *
     * @param loss mean cross-entropy of the labelled tokens, in nats
     * @param gradNorm Euclidean norm of all gradients before clipping
     * @param millis from the end of the step before, or for the first from its own beginning, to this step's end
     */
    public void set(double loss, double gradNorm, double millis) {
        this.loss = loss;
        this.gradNorm = gradNorm;
        this.millis = millis;
    }

    /** Returns the mean cross-entropy of the labelled tokens of the whole step, in nats. */
    public double loss() {
        return loss;
    }

    /** Returns the norm of all gradients before clipping. */
    public double gradNorm() {
        return gradNorm;
    }

    /** Returns the milliseconds from the end of the step before to the end of this one, by the device's clock. */
    public double millis() {
        return millis;
    }
}
