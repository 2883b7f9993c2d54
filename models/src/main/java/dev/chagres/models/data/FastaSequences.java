package dev.chagres.models.data;

import org.jspecify.annotations.Nullable;

/**
 * The sequences of a FASTA source once, in its order. The key of each follows from its residues alone, so that it has the same masks in every
 * evaluation, in whatever file it stands.
 *
 * <p>Threading: one thread at a time.
 */
public final class FastaSequences implements SequenceStream {
    /** Keeps these keys apart from those of training. */
    private static final long EVALUATION = 0x6576616cL;

    private final FastaSource source;
    private @Nullable FastaReader reader;
    private boolean ended;

    /**
     * Opens nothing yet: the first {@link #advance} does.
     *
     * @param source the records
     */
    public FastaSequences(FastaSource source) {
        this.source = source;
    }

    /**
     * {@inheritDoc}
     *
     * @throws FastaException when the source cannot be opened or read
     */
    @Override
    public boolean advance() {
        if (ended) {
            return false;
        }
        FastaReader records = reader == null ? source.open() : reader;
        reader = records;
        ended = !records.advance();
        return !ended;
    }

    private FastaReader present() {
        FastaReader present = reader;
        if (present == null || ended) {
            throw new IllegalStateException("expected a call of advance() that returned true before");
        }
        return present;
    }

    @Override
    public byte[] residues() {
        return present().residues();
    }

    @Override
    public int offset() {
        return 0;
    }

    @Override
    public int length() {
        return present().length();
    }

    @Override
    public long key() {
        return SplitMix.key(HeldOut.key(present().residues(), present().length()), EVALUATION);
    }

    @Override
    public void close() {
        ended = true;
        if (reader != null) {
            reader.close();
            reader = null;
        }
    }
}
