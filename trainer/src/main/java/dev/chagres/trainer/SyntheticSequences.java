package dev.chagres.trainer;

import dev.chagres.batch.Batch;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.TokenSequences;

/**
 * Sequences for a warm-up: as many, and as many tokens in all, as in a micro-batch of the data or as chosen, but the longest of a
 * chosen length. Each is one token over and over, the first of them labelled.
 *
 * <p>Threading: one thread at a time.
 */
final class SyntheticSequences implements TokenSequences {
    private final int longest;
    private int tokensLeft;
    private int sequencesLeft;
    private int length;
    private int id;
    private int label;
    private int padding;

    /**
     * Makes up sequences.
     *
     * @param tokens of all together, where so many sequences have as many
     * @param sequences how many, more where so many tokens need more
     * @param longest tokens of the longest one
     */
    SyntheticSequences(int tokens, int sequences, int longest) {
        this.longest = longest;
        sequencesLeft = Math.max(sequences, (tokens + longest - 1) / longest);
        tokensLeft = Math.max(tokens, longest + sequencesLeft - 1);
    }

    /** Takes id and label of the first token of {@code example} that has a label, and the id of padding tokens. */
    SyntheticSequences like(MicroBatch example, int newPadding) {
        int labelled = 0;
        while (labelled < example.paddedTokens() - 1 && example.labels()[labelled] == Batch.IGNORED) {
            labelled++;
        }
        id = example.ids()[labelled];
        label = example.labels()[labelled];
        padding = newPadding;
        return this;
    }

    @Override
    public boolean advance() {
        if (sequencesLeft == 0) {
            return false;
        }
        // The first is the longest; what it leaves is spread evenly.
        length = length == 0 ? longest : (tokensLeft + sequencesLeft - 1) / sequencesLeft;
        tokensLeft -= length;
        sequencesLeft--;
        return true;
    }

    @Override
    public int length() {
        return length;
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int count) {
        for (int i = start; i < start + count; i++) {
            ids[i] = id;
            labels[i] = Batch.IGNORED;
        }
        labels[start] = label;
        return label == Batch.IGNORED ? 0 : 1;
    }

    @Override
    public int padding() {
        return padding;
    }

    @Override
    public void close() {}
}
