package dev.chagres.batch;

/**
 * A series of token sequences, one of them current, from which {@link SequencePacker} makes batches. It may be endless.
 *
 * <p>Tokens and labels are written directly into the batch, so that reading makes no garbage. The values that are written for a sequence
 * should depend on that sequence alone, not on its place in a batch; then batches of every size have the same sequences.
 *
 * <p>Threading: one thread at a time.
 */
public interface TokenSequences extends AutoCloseable {
    /** Goes to the next sequence; false when there is none, then and ever after. Called once before the first. */
    boolean advance();

    /** Returns the tokens of the current sequence, at least 1; more than the context is allowed. */
    int length();

    /**
     * Writes the current sequence, or a part of it if the context is shorter.
     *
     * @param ids gets the tokens, at {@code start} to {@code start + count - 1}
     * @param labels gets for each token the id to predict there, or {@link Batch#IGNORED}
     * @param count {@link #length} or the context, whichever is less
     * @return how many tokens have a label
     */
    int write(int[] ids, int[] labels, int start, int count);

    /** Returns the token of padding; here 0. */
    default int padding() {
        return 0;
    }

    /** Closes the source of the sequences; here there is nothing to close. */
    @Override
    default void close() {}
}
