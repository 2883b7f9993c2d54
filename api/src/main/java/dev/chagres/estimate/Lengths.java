package dev.chagres.estimate;

import dev.chagres.internal.Checks;
import java.util.Arrays;

/**
 * The lengths of sequences, of queries as of keys, and the pairs of tokens that attention computes for them.
 *
 * <p>Threading: immutable.
 */
public final class Lengths {
    private static final int MOST = 1 << 24;

    private final long[] all;
    private final int microBatches;

    private Lengths(long[] all, int microBatches) {
        this.all = all;
        this.microBatches = microBatches;
    }

    /**
     * Takes the length of each sequence.
     *
     * @throws IllegalArgumentException when one is negative
     */
    public static Lengths of(long... lengths) {
        for (long length : Checks.given("lengths", lengths)) {
            if (length < 0) {
                throw new IllegalArgumentException("lengths: expected no negative length, got " + length);
            }
        }
        return new Lengths(lengths.clone(), 1);
    }

    /**
     * Returns {@code tokens} tokens as sequences of {@code longest}, the last of which may be shorter.
     *
     * @throws IllegalArgumentException when there are less than 0, more than 16,777,216 sequences, or {@code longest} is less than 1
     */
    public static Lengths ofTokens(long tokens, long longest) {
        if (tokens < 0 || longest < 1) {
            throw new IllegalArgumentException(
                    "tokens, longest: expected at least 0 and 1, got " + tokens + " and " + longest);
        }
        long count = Math.ceilDiv(tokens, longest);
        if (count > MOST) {
            throw new IllegalArgumentException("tokens: expected at most " + MOST + " sequences of " + longest
                    + ", got " + count + " of " + tokens + " tokens");
        }
        long[] lengths = new long[(int) count];
        Arrays.fill(lengths, longest);
        if (tokens % longest != 0) {
            lengths[lengths.length - 1] = tokens % longest;
        }
        return new Lengths(lengths, 1);
    }

    /**
     * Returns the same of so many micro-batches together: {@link #pairs} are the mean of one, which as many calls of each layer sum up.
     *
     * @throws IllegalArgumentException when there is none
     */
    public Lengths ofMicroBatches(int count) {
        return new Lengths(all, Math.toIntExact(Checks.atLeastOne("count", count)));
    }

    /** Returns how many sequences there are. */
    public int count() {
        return all.length;
    }

    /** Returns the number of all tokens. */
    public long tokens() {
        return Arrays.stream(all).sum();
    }

    /**
     * Returns the pairs of a query and a key that it sees, in all sequences of a micro-batch: key j is seen by query i if {@code i - left <= j <= i + right}.
     *
     * @param left keys before the query, -1 all
     * @param right keys after it, -1 all; 0 is causal
     */
    public double pairs(long left, long right) {
        double pairs = 0;
        for (long length : all) {
            double hidden = beyond(length, left) + beyond(length, right);
            pairs += (double) length * length - hidden;
        }
        return pairs / microBatches;
    }

    /** Returns the pairs of a sequence that lie further apart than {@code reach}, on one side. */
    private static double beyond(long length, long reach) {
        double rest = reach < 0 ? 0 : Math.max(0, length - 1 - reach);
        return rest * (rest + 1) / 2;
    }

    /** Returns how many sequences and tokens there are. */
    @Override
    public String toString() {
        return "Lengths(sequences=" + count() + ", tokens=" + tokens() + ")";
    }
}
