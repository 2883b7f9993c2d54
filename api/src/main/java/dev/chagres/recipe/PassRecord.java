package dev.chagres.recipe;

import dev.chagres.internal.Checks;

/**
 * For passes: the amaxes that the micro-batches of one pass record for the quantizers of one model.
 *
 * <p>Threading: the device's thread.
 */
public final class PassRecord {
    private final Quantizers quantizers;
    private final StepRecord record;
    private long microBatch = StepRecord.NONE;

    /**
     * Makes the record of a pass, which begins its micro-batches by {@link #begin}.
     *
     * @throws IllegalStateException when the quantizers are closed
     */
    public PassRecord(Quantizers quantizers) {
        this.quantizers = Checks.given("quantizers", quantizers);
        record = quantizers.record();
    }

    /** Returns the quantizers. */
    public Quantizers quantizers() {
        return quantizers;
    }

    /** Begins the next micro-batch of the pass. Enqueues a copy of the amaxes that earlier ones of the step have recorded. */
    public void begin() {
        if (quantizers.isOpen()) {
            microBatch = record.begin();
        }
    }

    /** Notes that the micro-batch records amaxes. */
    public void mark() {
        record.mark(microBatch);
    }

    /**
     * Discards what a failed micro-batch has recorded, and restores this step's amaxes from before it. If another pass or a graph has
     * recorded since the micro-batch began, everything stays, since the device keeps only the maximum of all. Does nothing when the
     * quantizers are closed.
     */
    public void takeBack() {
        if (quantizers.isOpen()) {
            record.takeBack(microBatch);
            quantizers.forgetWeights();
        }
    }
}
