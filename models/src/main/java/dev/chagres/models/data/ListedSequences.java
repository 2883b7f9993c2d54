package dev.chagres.models.data;

import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * Sequences of a list, once, each with its place in the list, counted from 1, as its key.
 *
 * <p>Threading: one thread at a time.
 */
public final class ListedSequences implements SequenceStream {
    private final List<String> sequences;
    private int next;

    /** Reads {@code sequences}, letters of the vocabulary, in their order. */
    public ListedSequences(List<String> sequences) {
        this.sequences = List.copyOf(sequences);
    }

    @Override
    public boolean advance() {
        return next < sequences.size() && ++next > 0;
    }

    @Override
    public byte[] residues() {
        return sequences.get(next - 1).getBytes(StandardCharsets.US_ASCII);
    }

    @Override
    public int offset() {
        return 0;
    }

    @Override
    public int length() {
        return sequences.get(next - 1).length();
    }

    @Override
    public long key() {
        return next;
    }

    @Override
    public void close() {}
}
