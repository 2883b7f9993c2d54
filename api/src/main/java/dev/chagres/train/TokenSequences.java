package dev.chagres.train;

/**
 * A run of token sequences, one of them current: what {@link SequencePacker} makes batches of. It may have no end.
 *
 * <p>Tokens and labels are written where the packer says, straight into the batch, so that reading on makes no garbage. What is
 * written for a sequence should follow from that sequence alone, not from its place in a batch; then batches of every size
 * hold the same.
 *
 * <p>Threading: one thread at a time.
 */
public interface TokenSequences extends AutoCloseable {
    /** Goes to the next sequence; false when there is none, then and ever after. Called once before the first. */
    boolean advance();

    /** Returns the tokens of the current sequence, at least 1; more than the context is allowed. */
    int length();

    /**
     * Writes the current sequence, or a part of it where the context is shorter.
     *
     * @param ids gets the tokens, at {@code start} to {@code start + count - 1}
     * @param labels gets for each token the id to predict there, or {@link Batch#IGNORED}
     * @param count {@link #length} or the context, whichever is less
     * @return how many tokens have a label
     */
    int write(int[] ids, int[] labels, int start, int count);

    /** Returns the token that stands where there is no sequence. */
    int padding();

    /** Closes what the sequences come from. */
    @Override
    void close();
}
