package dev.chagres.trainer;

import java.util.Arrays;

/**
 * The loss of every step so far, and the number of the step: a run that goes on from an earlier one does not begin at 1, and
 * skipped steps have no loss. It grows as steps are made, for a run may be asked for more steps than memory has room for.
 *
 * <p>Threading: one thread at a time.
 */
final class LossCurve {
    private static final int FIRST_STEPS = 1 << 10;

    private int[] numbers = new int[FIRST_STEPS];
    private double[] losses = new double[FIRST_STEPS];
    private int steps;

    /** Adds the loss of the step of this number, counted from 1 over the earlier runs too. */
    void add(int number, double loss) {
        if (steps == losses.length) {
            int room = (int) Math.min(Integer.MAX_VALUE - 8, 2L * steps);
            numbers = Arrays.copyOf(numbers, room);
            losses = Arrays.copyOf(losses, room);
        }
        numbers[steps] = number;
        losses[steps++] = loss;
    }

    /** Returns how many losses there are. */
    int steps() {
        return steps;
    }

    /** Returns the number of the step that loss {@code index}, counted from 0, is of. */
    int number(int index) {
        return numbers[index];
    }

    /** Returns loss {@code index}, counted from 0. */
    double at(int index) {
        return losses[index];
    }

    /** Returns the mean of the {@code count} losses up to {@code index} and with it, or of all where there are fewer. */
    double mean(int index, int count) {
        int first = Math.max(0, index + 1 - count);
        double sum = 0;
        for (int i = first; i <= index; i++) {
            sum += losses[i];
        }
        return sum / (index + 1 - first);
    }
}
