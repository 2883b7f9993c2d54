package dev.chagres.attention;

/**
 * For layers: the queries of a {@link PackedChunk} over the keys up to the last of them, which is all that a causal mask lets them see. For
 * each sequence that has queries here these are the keys up to its last query here; they are contiguous from {@link #firstKey} on, since
 * only the last sequence may continue behind the part.
 *
 * <p>A bottom-right causal mask over these keys equals a causal mask over the whole sequences, since the diagonal pairs the last query of
 * each with its last key.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code AttnFuncWithCPAndKVAllGather}.
 */
public final class PackedPrefix {
    private final Sequences sequences;
    private long firstKey;

    PackedPrefix(Sequences sequences) {
        this.sequences = sequences;
    }

    /** Returns these, whose keys begin at token {@code newFirstKey} of all. */
    PackedPrefix from(long newFirstKey) {
        firstKey = newFirstKey;
        return this;
    }

    /** Returns the sequences that have queries, and those of their keys. */
    public Sequences sequences() {
        return sequences;
    }

    /** Returns the first of these keys among those of all sequences. */
    public long firstKey() {
        return firstKey;
    }
}
