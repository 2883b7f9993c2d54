package dev.chagres.samples.train;

import java.util.Arrays;

/**
 * The loss of every step so far. It grows as steps are made, for a run may be asked for more steps than memory has room for.
 *
 * <p>Threading: one thread at a time.
 */
final class LossCurve {
    private static final int FIRST_STEPS = 1 << 10;

    private double[] losses = new double[FIRST_STEPS];
    private int steps;

    void add(double loss) {
        if (steps == losses.length) {
            losses = Arrays.copyOf(losses, (int) Math.min(Integer.MAX_VALUE - 8, 2L * steps));
        }
        losses[steps++] = loss;
    }

    int steps() {
        return steps;
    }

    /** Returns the loss of a step, counted from 0. */
    double at(int step) {
        return losses[step];
    }

    /** Returns the mean over the {@code count} steps up to {@code step} and with it, or over all where there are fewer. */
    double mean(int step, int count) {
        int first = Math.max(0, step + 1 - count);
        double sum = 0;
        for (int i = first; i <= step; i++) {
            sum += losses[i];
        }
        return sum / (step + 1 - first);
    }
}
