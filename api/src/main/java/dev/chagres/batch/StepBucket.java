package dev.chagres.batch;

/**
 * The shape that all micro-batches of batches of about one size are padded to, so that one graph serves them all.
 *
 * <p>Threading: immutable.
 *
 * @param layout of the batch; padded ones have rows of {@code longest} tokens, one for each sequence
 * @param microBatches of the batch
 * @param tokens of each micro-batch, padding included: a multiple of {@link BatchShape#TOKEN_MULTIPLE}
 * @param sequences of each micro-batch, those that pad and empty ones included
 * @param longest tokens that no sequence exceeds
 */
record StepBucket(BatchLayout layout, int microBatches, int tokens, int sequences, int longest) {
    /** cuDNN's plans are made for a longest sequence rounded up to a multiple of this. */
    private static final int LENGTH_MULTIPLE = 128;

    /** Token counts are rounded up to this part of the largest. */
    private static final int PARTS = 8;

    private static final int LEAST_SEQUENCES = 16;

    /** Rows of padded micro-batches, rounded up. */
    static int rows(int count, BatchShape shape) {
        int most = shape.maxSequences();
        return Math.min(most, roundUp(Math.max(count, 1), (most + PARTS - 1) / PARTS));
    }

    static int tokens(int count, BatchShape shape) {
        int most = shape.tokensPerMicroBatch();
        int part = roundUp((most + PARTS - 1) / PARTS, BatchShape.TOKEN_MULTIPLE);
        return Math.min(most, roundUp(Math.max(count, 1), part));
    }

    static int longest(int length, BatchShape shape) {
        return Math.min(Math.max(shape.context(), length), roundUp(Math.max(length, 1), LENGTH_MULTIPLE));
    }

    /**
     * Sequences of micro-batches that are padded to the same tokens, rounded up.
     *
     * @param needed the most that one of them {@linkplain #needed needs}
     */
    static int sequences(int needed) {
        return Math.max(LEAST_SEQUENCES, Integer.highestOneBit(Math.max(1, needed - 1)) << 1);
    }

    /** Sequences of a micro-batch of {@code count} that end at token {@code end} and of padding up to {@code tokens}. */
    static int needed(int count, int end, int tokens, int longest) {
        return count + (tokens - end + longest - 1) / longest;
    }

    private static int roundUp(int count, int multiple) {
        return (count + multiple - 1) / multiple * multiple;
    }

    @Override
    public String toString() {
        return (microBatches == 1 ? "" : microBatches + " micro-batches of ") + tokens + " tokens in "
                + (layout == BatchLayout.PADDED
                        ? sequences + " rows of " + longest
                        : "up to " + sequences + " sequences of up to " + longest);
    }
}
