package dev.chagres.attention;

/**
 * For layers: the queries of a {@link PackedPart} over the keys up to the last of them, which is all that a causal mask lets them see. Of
 * each sequence that has queries here these are the keys before them and among them; they lie side by side from {@link #firstKey} on, for
 * the last sequence alone may go on behind the stretch.
 *
 * <p>A causal mask from the bottom right is then what a causal mask is over the whole sequences: the last query of each stands on its last
 * key.
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
