package dev.chagres.train;

import dev.chagres.internal.Checks;

/**
 * Fills batches with whole sequences, in the order in which they come.
 *
 * <p>A micro-batch takes sequences until the next one no longer fits into its share of the step's tokens; that sequence begins the next
 * micro-batch. So the micro-batches are the batches of a packer without micro-batches and with a budget of {@link
 * BatchShape#tokensPerMicroBatch}: the same sequences in the same order. Of a sequence that is longer than the context, as many tokens are
 * used as the context has.
 *
 * <p>Threading: one thread at a time.
 */
public final class SequencePacker implements AutoCloseable {
    private final BatchShape shape;
    private final TokenSequences sequences;
    private boolean pending;

    /**
     * Packs sequences, which this packer owns from now on.
     *
     * @param shape the most that a batch may hold
     */
    public SequencePacker(BatchShape shape, TokenSequences sequences) {
        this.shape = Checks.given("shape", shape);
        this.sequences = Checks.given("sequences", sequences);
    }

    /** Returns the most that the batches may hold. */
    public BatchShape shape() {
        return shape;
    }

    /**
     * Replaces the contents of a batch by the next sequences.
     *
     * @return false when there was no sequence left and the batch is empty
     * @throws IllegalArgumentException when the batch was made for another shape
     * @throws IllegalStateException when a sequence has no token
     * @throws RuntimeException the exception of the sequences if their source fails
     */
    public boolean fill(Batch batch) {
        if (!Checks.given("batch", batch).shape().equals(shape)) {
            throw new IllegalArgumentException("batch: expected one made for " + shape + ", got " + batch.shape());
        }
        batch.clear();
        for (int i = 0; i < shape.microBatches(); i++) {
            MicroBatch next = batch.next();
            fill(next);
            if (next.sequences() == 0) {
                break;
            }
            batch.keep();
        }
        return batch.microBatches() > 0;
    }

    private void fill(MicroBatch batch) {
        while (pending || sequences.advance()) {
            pending = true;
            int length = Math.min(checked(sequences.length()), shape.context());
            if (!batch.fits(length)) {
                break;
            }
            batch.append(sequences, length);
            pending = false;
        }
        batch.pad(sequences.padding());
    }

    private static int checked(int length) {
        if (length < 1) {
            throw new IllegalStateException("sequences: expected at least 1 token in each, got " + length);
        }
        return length;
    }

    /** Closes the sequences. */
    @Override
    public void close() {
        sequences.close();
    }
}
