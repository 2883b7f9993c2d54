package dev.chagres.models.data;

/**
 * A run of residue sequences, one of them current.
 *
 * <p>Threading: one thread at a time.
 */
public interface SequenceStream extends AutoCloseable {
    /** Goes to the next sequence; false when there is none. Called once before the first. */
    boolean advance();

    /** Returns the array that holds the current sequence as upper-case letters. */
    byte[] residues();

    /** Returns where in {@link #residues} the current sequence begins. */
    int offset();

    /** Returns the current sequence's number of residues, at least 1. */
    int length();

    /** Returns the number that everything drawn at random for the current sequence follows from. */
    long key();

    @Override
    void close();
}
