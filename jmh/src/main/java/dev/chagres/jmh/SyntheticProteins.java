package dev.chagres.jmh;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;
import java.util.SplittableRandom;

/** An endless source of sequences: lengths like those of proteins, tokens and labels by a simple rule. */
final class SyntheticProteins implements TokenSequences {
    static final int LABEL_EVERY = 7;
    /** The id of padding tokens. */
    static final int PADDING = 1;

    private static final int SHORTEST = 30;
    private static final double MEAN_SURPLUS = 350;

    private final SplittableRandom random = new SplittableRandom(1);
    private int number;
    private int length;

    @Override
    public boolean advance() {
        number++;
        length = SHORTEST + (int) (-MEAN_SURPLUS * Math.log(1 - random.nextDouble()));
        return true;
    }

    @Override
    public int length() {
        return length;
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int count) {
        int labelled = 0;
        for (int i = 0; i < count; i++) {
            boolean has = (number + i) % LABEL_EVERY == 0;
            ids[start + i] = 4 + (number + 31 * i) % 20;
            labels[start + i] = has ? ids[start + i] : Batch.IGNORED;
            labelled += has ? 1 : 0;
        }
        return labelled;
    }

    @Override
    public int padding() {
        return PADDING;
    }

    @Override
    public void close() {}
}
