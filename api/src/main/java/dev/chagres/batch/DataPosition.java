package dev.chagres.batch;

/**
 * Which sequences of the data were put into batches: all before {@code next}, and some after it that {@link PackingOrder#BEST_FIT} took ahead.
 *
 * <p>Threading: immutable.
 *
 * @param next the number of the first sequence that is left, counted from 0
 * @param takenAhead bit i stands for sequence {@code next + 1 + i}, which was taken already where the bit is 1
 */
public record DataPosition(long next, long takenAhead) {
    /** Before the first sequence. */
    public static final DataPosition START = new DataPosition(0, 0);

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when next is negative, or a sequence further ahead than a packer looks was taken
     */
    public DataPosition {
        if (next < 0) {
            throw new IllegalArgumentException("next: expected a number of sequences from 0 on, got " + next);
        }
        if (takenAhead < 0 || takenAhead >= 1L << SequencePacker.LOOK_AHEAD) {
            throw new IllegalArgumentException("takenAhead: expected the bits of " + SequencePacker.LOOK_AHEAD
                    + " sequences, 0 to " + ((1L << SequencePacker.LOOK_AHEAD) - 1) + ", got " + takenAhead);
        }
    }
}
