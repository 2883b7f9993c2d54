package dev.chagres.batch;

import dev.chagres.internal.Checks;

/**
 * Fills batches with whole sequences.
 *
 * <p>A micro-batch takes sequences, in a {@link PackingOrder}, until the next one no longer fits into its share of the step's tokens. So the
 * micro-batches are the batches of a packer without micro-batches and with a budget of {@link BatchShape#tokensPerMicroBatch}: the same
 * sequences in the same order. Of a sequence that is longer than the context, as many tokens are used as the context has.
 *
 * <p>Threading: one thread at a time.
 */
public final class SequencePacker implements AutoCloseable {
    /** How many sequences {@link PackingOrder#BEST_FIT} chooses from. */
    public static final int LOOK_AHEAD = 32;

    private final BatchShape shape;
    private final SequenceWindow window;

    /**
     * Packs sequences as they come; this packer owns them from now on.
     *
     * @param shape the most that a batch may hold
     */
    public SequencePacker(BatchShape shape, TokenSequences sequences) {
        this(shape, sequences, PackingOrder.AS_GIVEN, DataPosition.START);
    }

    /**
     * Packs sequences that another packer has left; this one owns them from now on.
     *
     * @param shape the most that a batch may hold
     * @param sequences advanced by {@link DataPosition#next} sequences already
     * @param start what the other packer had taken, as {@link Batch#end} of its last batch says
     */
    public SequencePacker(BatchShape shape, TokenSequences sequences, PackingOrder order, DataPosition start) {
        this.shape = Checks.given("shape", shape);
        window = new SequenceWindow(
                Checks.given("sequences", sequences),
                shape.context(),
                Checks.given("order", order),
                Checks.given("start", start));
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
     * @throws RuntimeException the exception of the sequences if their source fails, also at each further call; go on with another packer
     *     from the {@link Batch#end} of the last batch
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
        batch.endAt(window.next(), window.takenAhead());
        return batch.microBatches() > 0;
    }

    private void fill(MicroBatch batch) {
        SequenceWindow.Copy next = window.choose(batch.room());
        while (next != null) {
            batch.append(next, window.padding());
            window.take();
            next = window.choose(batch.room());
        }
        batch.pad(window.padding());
    }

    /** Closes the sequences. */
    @Override
    public void close() {
        window.close();
    }
}
