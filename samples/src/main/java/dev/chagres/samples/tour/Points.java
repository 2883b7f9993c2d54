package dev.chagres.samples.tour;

import dev.chagres.batch.TokenSequences;
import java.util.SplittableRandom;

/**
 * Points of a grid, 16 y + x, sixteen in a sequence, each labelled 1 inside a circle and 0 outside. What a sequence holds follows from its
 * number alone, so that a run which is resumed finds its place.
 */
final class Points implements TokenSequences {
    private static final int SEQUENCES = 10_000;

    private int number;

    @Override
    public boolean advance() {
        return number++ < SEQUENCES;
    }

    @Override
    public int length() {
        return 16;
    }

    @Override
    public int write(int[] ids, int[] labels, int start, int count) {
        SplittableRandom random = new SplittableRandom(number);
        for (int i = start; i < start + count; i++) {
            ids[i] = random.nextInt(256);
            labels[i] = Math.hypot(ids[i] % 16 - 7.5, ids[i] / 16 - 7.5) < 6 ? 1 : 0;
        }
        return count;
    }
}
