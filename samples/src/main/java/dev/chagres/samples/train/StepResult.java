package dev.chagres.samples.train;

/**
 * What a model tells of one finished step; filled again for later steps.
 *
 * <p>Threading: one thread at a time.
 */
public final class StepResult {
    private double loss;
    private double gradNorm;
    private long completedNanos;

    /**
     * Takes a step's values.
     *
     * @param loss mean cross-entropy of the masked tokens, in nats
     * @param gradNorm Euclidean norm of all gradients before clipping
     * @param completedNanos when the step was done, by {@link System#nanoTime}
     */
    public void set(double loss, double gradNorm, long completedNanos) {
        this.loss = loss;
        this.gradNorm = gradNorm;
        this.completedNanos = completedNanos;
    }

    /** Returns the mean cross-entropy of the masked tokens, in nats. */
    public double loss() {
        return loss;
    }

    /** Returns the norm of all gradients before clipping. */
    public double gradNorm() {
        return gradNorm;
    }

    /** Returns when the step was done, by {@link System#nanoTime}. */
    public long completedNanos() {
        return completedNanos;
    }
}
