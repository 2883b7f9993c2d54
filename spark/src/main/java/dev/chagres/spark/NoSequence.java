package dev.chagres.spark;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;
import dev.chagres.models.data.EsmVocabulary;

/**
 * One token without a label: what a rank computes whose partition has ended, while the others need it in each micro-batch.
 *
 * <p>Threading: one thread at a time.
 */
final class NoSequence implements TokenSequences {
    private boolean given;

    @Override
    public boolean advance() {
        boolean first = !given;
        given = true;
        return first;
    }

    @Override
    public int length() {
        return 1;
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int count) {
        ids[start] = EsmVocabulary.CLS;
        labels[start] = Batch.IGNORED;
        return 0;
    }

    @Override
    public int padding() {
        return EsmVocabulary.PAD;
    }
}
