package dev.chagres.batch;

import java.util.Random;

/**
 * Sequences whose tokens and labels follow from their number and the place alone: of a list of lengths, once, or of drawn
 * lengths without end.
 */
final class NumberedSequences implements TokenSequences {
    static final int PADDING = 0;

    private final int[] lengths;
    private final int longest;
    private final Random random;
    private int number = -1;
    private int length;
    private int writes;
    /** The number of the sequence at which reading fails. */
    int failsAt = Integer.MAX_VALUE;

    Throwable failure = new IllegalArgumentException("made up");
    volatile boolean closed;

    private NumberedSequences(int[] lengths, int longest, long seed) {
        this.lengths = lengths;
        this.longest = longest;
        random = new Random(seed);
    }

    static NumberedSequences of(int... lengths) {
        return new NumberedSequences(lengths, 0, 0);
    }

    static NumberedSequences drawn(long seed, int longest) {
        return new NumberedSequences(new int[0], longest, seed);
    }

    static int token(int number, int place) {
        return 1 + (31 * number + place) % 1_000;
    }

    static int label(int number, int place) {
        return (number + place) % 5 == 0 ? token(number, place) : Batch.IGNORED;
    }

    @Override
    public boolean advance() {
        if (longest == 0 && number + 1 >= lengths.length) {
            return false;
        }
        number++;
        if (number == failsAt) {
            throwAny(failure);
        }
        length = longest == 0 ? lengths[number] : 1 + random.nextInt(longest);
        return true;
    }

    @SuppressWarnings({"unchecked", "TypeParameterUnusedInFormals"})
    private static <E extends Throwable> void throwAny(Throwable e) throws E {
        throw (E) e;
    }

    @Override
    public int length() {
        return length;
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int count) {
        writes++;
        int labelled = 0;
        for (int i = 0; i < count; i++) {
            ids[start + i] = token(number, i);
            labels[start + i] = label(number, i);
            labelled += labels[start + i] == Batch.IGNORED ? 0 : 1;
        }
        return labelled;
    }

    /** How many sequences were written. */
    int writes() {
        return writes;
    }

    @Override
    public int padding() {
        return PADDING;
    }

    @Override
    public void close() {
        closed = true;
    }
}
