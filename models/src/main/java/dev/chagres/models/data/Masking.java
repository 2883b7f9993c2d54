package dev.chagres.models.data;

import dev.chagres.batch.Batch;

/**
 * Chooses the residues that the model is to predict: each with probability 0.15; of those 80 % become {@code <mask>},
 * 10 % another standard residue drawn at random, 10 % stay. Unknown letters are not chosen, unless there is nothing else.
 *
 * <p>A sequence for which none was drawn gets one, so that every batch has a loss. {@code <cls>} and {@code <eos>} are
 * never chosen. What is drawn follows from the key alone.
 *
 * <p>Threading: one thread at a time.
 *
 * <p>Source: Devlin et al., "BERT", 2019, section 3.1; Lin et al., "ESM-2", 2023.
 */
public final class Masking {
    private static final double CHOSEN = 0.15;
    private static final double MASKED = 0.8;
    private static final double REPLACED = 0.1;
    private static final long CHOSEN_BELOW = (long) (CHOSEN * (1L << 32));
    private static final int MASKED_BELOW = (int) (MASKED * (1 << 16));
    private static final int REPLACED_BELOW = (int) ((MASKED + REPLACED) * (1 << 16));

    private final SplitMix random = new SplitMix();
    private final int[] replacements;

    /** Masks amino acids. */
    public Masking() {
        this(Letters.PROTEIN);
    }

    /** Masks {@code letters}: tokens are replaced by those that each stand for one residue, or one nucleotide. */
    public Masking(Letters letters) {
        replacements = letters.standardTokens();
    }

    /**
     * Masks the residues at {@code start} to {@code start + length - 1} and writes their labels.
     *
     * @param ids tokens, changed in place
     * @param labels gets the former token where one was chosen, else {@link Batch#IGNORED}
     * @param length at least 1
     * @param key what the choice follows from
     * @return how many were chosen
     */
    public int apply(int[] ids, int[] labels, int start, int length, long key) {
        random.restart(key);
        int chosen = 0;
        for (int i = start; i < start + length; i++) {
            labels[i] = Batch.IGNORED;
            long bits = random.next();
            if (bits >>> 32 < CHOSEN_BELOW && ids[i] != EsmVocabulary.UNKNOWN) {
                choose(ids, labels, i, (int) bits);
                chosen++;
            }
        }
        if (chosen == 0) {
            choose(ids, labels, start + random.next(length), (int) random.next());
            chosen = 1;
        }
        return chosen;
    }

    /** The upper half of {@code bits} tells what becomes of the token, the lower half by which one it is replaced. */
    private void choose(int[] ids, int[] labels, int i, int bits) {
        labels[i] = ids[i];
        int kind = bits >>> 16;
        if (kind < MASKED_BELOW) {
            ids[i] = EsmVocabulary.MASK;
        } else if (kind < REPLACED_BELOW) {
            ids[i] = replacements[(bits & 0xffff) * replacements.length >>> 16];
        }
    }
}
