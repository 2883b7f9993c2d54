package dev.chagres.batch;

import dev.chagres.internal.Checks;

/**
 * The sequences of one training step, as one or several micro-batches, each of which goes through the model at once. Its arrays are reused
 * for later steps.
 *
 * <p>The loss of a step is the mean over all its labelled tokens. The loss of a micro-batch is the mean over its own tokens; the losses
 * times {@link #share} add up to the step's.
 *
 * <p>Threading: one thread at a time; {@link BatchSource} hands a batch from its thread to the caller's and back.
 */
public final class Batch {
    /** Label of a token that the loss leaves out. */
    public static final int IGNORED = -100;

    private final BatchShape shape;
    private final MicroBatch[] all;
    private int filled;
    private long next;
    private long takenAhead;
    /** Of the step, where ranks have batches of their own; else 0. */
    private long labelledOfStep;

    /** Makes an empty batch for at most {@code shape}. */
    public Batch(BatchShape shape) {
        this.shape = Checks.given("shape", shape);
        all = new MicroBatch[shape.microBatches()];
        for (int i = 0; i < all.length; i++) {
            all[i] = new MicroBatch(shape);
        }
    }

    /** Returns the most that the batch may hold. */
    public BatchShape shape() {
        return shape;
    }

    /** Returns the number of micro-batches that are not empty: the shape's number, or fewer at the end of the data. */
    public int microBatches() {
        return filled;
    }

    /**
     * Returns a micro-batch.
     *
     * @param index counted from 0
     * @throws IndexOutOfBoundsException when there is none
     */
    public MicroBatch microBatch(int index) {
        if (index < 0 || index >= filled) {
            throw new IndexOutOfBoundsException(
                    "index: expected that of one of " + filled + " filled micro-batches, counted from 0, got " + index);
        }
        return all[index];
    }

    /**
     * Returns the number of labelled tokens of a micro-batch divided by that of the whole batch, or of the step that it is {@link #partOf}: the factor on its loss and gradients. If
     * no token has a label, so that every loss is 0, all micro-batches have equal shares.
     *
     * @throws IndexOutOfBoundsException when there is no such micro-batch
     */
    public double share(int index) {
        int labelled = microBatch(index).labelled();
        long whole = labelledOfStep();
        return whole == 0 ? 1.0 / filled : (double) labelled / whole;
    }

    /** Returns the number of tokens that came from the data. */
    public int tokens() {
        int sum = 0;
        for (int i = 0; i < filled; i++) {
            sum += all[i].tokens();
        }
        return sum;
    }

    /** Returns the number of tokens that a step computes, padding included. */
    public int paddedTokens() {
        int sum = 0;
        for (int i = 0; i < filled; i++) {
            sum += all[i].paddedTokens();
        }
        return sum;
    }

    /** Returns the number of tokens with a label. */
    public int labelled() {
        int sum = 0;
        for (int i = 0; i < filled; i++) {
            sum += all[i].labelled();
        }
        return sum;
    }

    /** Returns the sum of the squared lengths of the sequences that came from the data: the work of attention. */
    public long attendedPairs() {
        long sum = 0;
        for (int i = 0; i < filled; i++) {
            sum += all[i].attendedPairs();
        }
        return sum;
    }

    /**
     * Says how many labelled tokens a step has in all, of which this batch is a part: where each rank has a batch of its own.
     *
     * @param labelled of all ranks; {@link #share} divides by it until the batch is filled again
     * @throws IllegalArgumentException when it is less than those of this batch, or 0
     */
    public void partOf(long labelled) {
        if (labelled < Math.max(1, labelled())) {
            throw new IllegalArgumentException(
                    "labelled: expected at least the " + labelled() + " of this batch, and 1, got " + labelled);
        }
        labelledOfStep = labelled;
    }

    /** Returns which sequences of the data this batch and those before it have taken. */
    public DataPosition end() {
        return new DataPosition(next, takenAhead);
    }

    /** Returns {@link DataPosition#next} of {@link #end}, without making an object. */
    public long endNext() {
        return next;
    }

    /** Returns {@link DataPosition#takenAhead} of {@link #end}, without making an object. */
    public long endTakenAhead() {
        return takenAhead;
    }

    void endAt(long newNext, long newTakenAhead) {
        next = newNext;
        takenAhead = newTakenAhead;
    }

    long labelledOfStep() {
        return labelledOfStep == 0 ? labelled() : labelledOfStep;
    }

    void clear() {
        filled = 0;
        labelledOfStep = 0;
    }

    /** Returns the micro-batch after the filled ones, empty; it counts once {@link #keep} is called. */
    MicroBatch next() {
        MicroBatch next = all[filled];
        next.clear();
        return next;
    }

    void keep() {
        filled++;
    }
}
