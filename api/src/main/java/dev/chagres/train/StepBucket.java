package dev.chagres.train;

/**
 * The shape that packed batches of about one size are padded to, so that one graph serves them all.
 *
 * <p>Threading: immutable.
 *
 * @param tokens of the batch, padding included: a multiple of {@link BatchShape#TOKEN_MULTIPLE}
 * @param sequences those that pad and empty ones included
 * @param longest tokens that no sequence exceeds
 */
record StepBucket(int tokens, int sequences, int longest) {
    /** cuDNN's plans are made for a longest sequence rounded up to a multiple of this. */
    private static final int LENGTH_MULTIPLE = 128;

    /** Token counts are rounded up to this part of the largest. */
    private static final int PARTS = 8;

    private static final int LEAST_SEQUENCES = 16;

    static int tokens(int count, BatchShape shape) {
        int most = shape.tokensPerMicroBatch();
        int part = roundUp((most + PARTS - 1) / PARTS, BatchShape.TOKEN_MULTIPLE);
        return Math.min(most, roundUp(Math.max(count, 1), part));
    }

    static int longest(int length, BatchShape shape) {
        return Math.min(Math.max(shape.context(), length), roundUp(Math.max(length, 1), LENGTH_MULTIPLE));
    }

    /** Sequences of a batch that is padded to {@code tokens} in sequences of {@code longest} at most, rounded up. */
    static int sequences(int count, int end, int tokens, int longest) {
        int needed = count + (tokens - end + longest - 1) / longest;
        return Math.max(LEAST_SEQUENCES, Integer.highestOneBit(Math.max(1, needed - 1)) << 1);
    }

    private static int roundUp(int count, int multiple) {
        return (count + multiple - 1) / multiple * multiple;
    }

    @Override
    public String toString() {
        return tokens + " tokens in up to " + sequences + " sequences of up to " + longest;
    }
}
