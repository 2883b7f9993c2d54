package dev.chagres.attention;

import dev.chagres.internal.Checks;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Where packed sequences lie in consecutive chunks of their tokens: chunk c has the tokens {@code bounds[c]} to before {@code bounds[c + 1]}.
 *
 * <p>The object is used again for other sequences, and then makes no garbage.
 *
 * <p>Threading: one thread at a time.
 */
final class SequenceChunks {
    private @Nullable CuSeqlens offsets;
    private long[] bounds = {0};

    /**
     * Describes these sequences from now on.
     *
     * @param newBounds the first token of each chunk, then the number of tokens
     * @throws IllegalArgumentException when chunks do not cover the tokens
     */
    void set(CuSeqlens newOffsets, long tokens, long[] newBounds) {
        int chunks = newBounds.length - 1;
        boolean covers = chunks > 0 && newBounds[0] == 0 && newBounds[chunks] == tokens;
        for (int i = 0; covers && i < chunks; i++) {
            covers = newBounds[i] < newBounds[i + 1];
        }
        if (!covers) {
            throw new IllegalArgumentException("bounds: expected 0, then numbers that increase up to the " + tokens
                    + " tokens, got " + Arrays.toString(newBounds));
        }
        offsets = newOffsets;
        bounds = newBounds;
    }

    private CuSeqlens offsets() {
        return Checks.given("offsets", offsets);
    }

    /** Returns the number of sequences. */
    int sequences() {
        return offsets().sequences();
    }

    /** Returns the tokens of the longest sequence. */
    int longest() {
        return offsets().longest();
    }

    /** Returns the number of chunks. */
    int chunks() {
        return bounds.length - 1;
    }

    /** Returns the number of tokens of a chunk. */
    long size(int chunk) {
        return bounds[chunk + 1] - bounds[chunk];
    }

    /** Returns how many tokens of a sequence a chunk has. */
    int tokens(int sequence, int chunk) {
        long first = Math.max(bounds[chunk], offsets().offset(sequence));
        return (int) Math.max(0, Math.min(bounds[chunk + 1], offsets().offset(sequence + 1)) - first);
    }

    /** Returns the index within a sequence of its first token in a chunk. */
    int firstOfSequence(int sequence, int chunk) {
        return (int) Math.max(0, bounds[chunk] - offsets().offset(sequence));
    }

    /** Returns the index within a chunk of the first token that a sequence has there. */
    long firstOfChunk(int sequence, int chunk) {
        return Math.max(0, offsets().offset(sequence) - bounds[chunk]);
    }

    /** Returns the only sequence that may have tokens both in {@code chunk} and in {@code other}. */
    int shared(int chunk, int other) {
        // Before the chunk lies the sequence of its first token, after it that of its last one.
        return holder(other < chunk ? bounds[chunk] : bounds[chunk + 1] - 1);
    }

    /** Returns the sequence that has a token: the last one that begins there or before. */
    private int holder(long token) {
        int low = 0;
        int high = sequences() - 1;
        while (low < high) {
            int middle = (low + high + 1) >>> 1;
            if (offsets().offset(middle) <= token) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }
}
