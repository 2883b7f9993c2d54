package dev.chagres.models.data;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;

/**
 * Protein sequences as ESM-2 learns from them: {@code <cls> residues <eos>}, some residues masked and labelled.
 *
 * <p>A sequence longer than the context becomes a stretch of it whose start is drawn from its key, and so are the masks: the
 * same sequence has the same stretch and the same masked residues however sequences are grouped.
 *
 * <p>Threading: one thread at a time.
 */
public final class MaskedProteins implements TokenSequences {
    /** The shortest context: {@code <cls>}, one residue, {@code <eos>}. */
    public static final int SHORTEST_CONTEXT = 3;

    /** {@code <cls>} and {@code <eos>}. */
    private static final int ENDS = 2;

    private static final int CUT = 1;
    private static final int MASK = 2;

    private final SequenceStream sequences;
    private final Masking masking;
    private final SplitMix random = new SplitMix();

    /** Masks the sequences of a stream, which this object owns from here on. */
    public MaskedProteins(SequenceStream sequences) {
        this(sequences, Letters.PROTEIN);
    }

    /**
     * Masks the sequences of a stream, which this object owns from here on.
     *
     * @param letters of which some replace others
     */
    public MaskedProteins(SequenceStream sequences, Letters letters) {
        this.sequences = sequences;
        masking = new Masking(letters);
    }

    /**
     * {@inheritDoc}
     *
     * @throws FastaException when the sequences' source fails
     */
    @Override
    public boolean advance() {
        return sequences.advance();
    }

    @Override
    public int length() {
        return sequences.length() + ENDS;
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int count) {
        int residues = count - ENDS;
        byte[] letters = sequences.residues();
        int from = sequences.offset() + cutStart(residues);
        ids[start] = EsmVocabulary.CLS;
        labels[start] = Batch.IGNORED;
        for (int i = 0; i < residues; i++) {
            ids[start + 1 + i] = EsmVocabulary.token(letters[from + i]);
        }
        ids[start + 1 + residues] = EsmVocabulary.EOS;
        labels[start + 1 + residues] = Batch.IGNORED;
        return masking.apply(ids, labels, start + 1, residues, SplitMix.key(sequences.key(), MASK));
    }

    @Override
    public int padding() {
        return EsmVocabulary.PAD;
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
