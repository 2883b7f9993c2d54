package dev.chagres.samples.data;

/**
 * Fills batches with whole sequences, in the order in which they come, until the next one no longer fits.
 *
 * <p>A sequence becomes {@code <cls> residues <eos>}; one longer than the context becomes a stretch of it whose start is
 * drawn from its key. Layout and token budget decide only how sequences are grouped: the same sequence has the same
 * stretch and the same masked residues in every layout.
 *
 * <p>Threading: one thread at a time.
 */
public final class SequencePacker implements AutoCloseable {
    private static final int CUT = 1;
    private static final int MASK = 2;

    private final BatchShape shape;
    private final SequenceStream sequences;
    private final Masking masking = new Masking();
    private final SplitMix random = new SplitMix();
    private boolean pending;

    /**
     * Packs the sequences of a stream, which this packer owns from here on.
     *
     * @param shape the most that a batch may hold
     */
    public SequencePacker(BatchShape shape, SequenceStream sequences) {
        this.shape = shape;
        this.sequences = sequences;
    }

    /** Returns what the batches may hold at most. */
    public BatchShape shape() {
        return shape;
    }

    /**
     * Replaces what a batch holds by the next sequences.
     *
     * @return false when there was none left, and the batch is empty
     * @throws FastaException when the sequences' source fails
     * @throws IllegalArgumentException when the batch was made for another shape
     */
    public boolean fill(Batch batch) {
        if (!batch.shape().equals(shape)) {
            throw new IllegalArgumentException("batch: expected one made for " + shape + ", got " + batch.shape());
        }
        batch.clear();
        while (pending || sequences.advance()) {
            pending = true;
            int residues = Math.min(sequences.length(), shape.context() - 2);
            if (!batch.fits(residues + 2)) {
                break;
            }
            append(batch, residues);
            pending = false;
        }
        batch.pad();
        return batch.sequences() > 0;
    }

    private void append(Batch batch, int residues) {
        int start = batch.nextStart();
        int[] ids = batch.ids();
        int[] labels = batch.labels();
        byte[] letters = sequences.residues();
        int from = sequences.offset() + cutStart(residues);
        ids[start] = EsmVocabulary.CLS;
        labels[start] = Batch.IGNORED;
        for (int i = 0; i < residues; i++) {
            ids[start + 1 + i] = EsmVocabulary.residueToken(letters[from + i]);
        }
        ids[start + 1 + residues] = EsmVocabulary.EOS;
        labels[start + 1 + residues] = Batch.IGNORED;
        int masked = masking.apply(ids, labels, start + 1, residues, SplitMix.key(sequences.key(), MASK));
        if (shape.layout() == BatchLayout.PADDED) {
            batch.fillWithPadding(start + residues + 2, start + shape.context());
        }
        batch.count(residues + 2, masked);
    }

    private int cutStart(int residues) {
        int surplus = sequences.length() - residues;
        if (surplus == 0) {
            return 0;
        }
        random.restart(SplitMix.key(sequences.key(), CUT));
        return random.next(surplus + 1);
    }

    @Override
    public void close() {
        sequences.close();
    }
}
