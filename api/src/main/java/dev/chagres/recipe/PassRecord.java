package dev.chagres.recipe;

import dev.chagres.internal.Checks;

/**
 * For passes: what the micro-batches of one pass record for the quantizers of one model.
 *
 * <p>Threading: the device's thread.
 */
public final class PassRecord {
    private final Quantizers quantizers;
    private final StepRecord record;
    private long microBatch = StepRecord.NONE;

    /**
     * Makes that of a pass, which begins its micro-batches by {@link #begin}.
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

    /** Says that the pass begins its next micro-batch. Enqueues a copy of what earlier ones of the step have recorded. */
    public void begin() {
        if (quantizers.isOpen()) {
            microBatch = record.begin();
        }
    }

    /** Says that the micro-batch records. */
    public void mark() {
        record.mark(microBatch);
    }

    /**
     * Takes back what the micro-batch has recorded, which has failed: this step's record is again what it was before. Where another pass
     * or a graph has recorded since this micro-batch began all of it stays, for the device keeps the largest magnitude of all, and not
     * whose it is. Does nothing when the quantizers are closed.
     */
    public void takeBack() {
        if (quantizers.isOpen()) {
            record.takeBack(microBatch);
            quantizers.forgetWeights();
        }
    }
}
