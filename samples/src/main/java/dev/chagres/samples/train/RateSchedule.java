package dev.chagres.samples.train;

import java.util.Locale;

/**
 * The learning rate by step: it rises linearly over the warm-up, then stays or falls to a tenth of its peak.
 *
 * <p>Threading: immutable.
 *
 * @param peak the highest rate
 * @param warmUpSteps how many steps rise
 * @param steps the steps of the whole run
 * @param decay how the rate falls
 */
record RateSchedule(double peak, int warmUpSteps, int steps, Decay decay) {
    private static final double LAST_SHARE = 0.1;

    /** How the rate falls after the warm-up. */
    enum Decay {
        NONE,
        LINEAR,
        COSINE;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** Returns the rate of a step, counted from 0. */
    double at(int step) {
        if (step < warmUpSteps) {
            return peak * (step + 1) / warmUpSteps;
        }
        double way = (double) (step - warmUpSteps) / Math.max(1, steps - 1 - warmUpSteps);
        double share = switch (decay) {
            case NONE -> 1;
            case LINEAR -> 1 - way;
            case COSINE -> (1 + Math.cos(Math.PI * way)) / 2;
        };
        return decay == Decay.NONE ? peak : peak * (LAST_SHARE + (1 - LAST_SHARE) * share);
    }
}
