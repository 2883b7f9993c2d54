package dev.chagres.trainer;

/**
 * The last steps of a run, whose rate is the one that it goes on at: the first ones may have waited for files and for
 * libraries that begin to work.
 *
 * <p>Threading: one thread at a time.
 */
final class RecentSteps {
    private static final int MOST = 100;

    private final int[] tokens = new int[MOST];
    private final int[] paddedTokens = new int[MOST];
    private final double[] flops = new double[MOST];
    private final double[] millis = new double[MOST];
    private int steps;

    void add(StepMetrics step) {
        int place = steps++ % MOST;
        tokens[place] = step.tokens();
        paddedTokens[place] = step.paddedTokens();
        flops[place] = step.flops();
        millis[place] = step.stepMillis();
    }

    /** Returns the sums over the last half of the steps, over 100 at most. */
    Totals lastHalf() {
        var totals = new Totals();
        int count = Math.min(MOST, (steps + 1) / 2);
        for (int step = steps - count; step < steps; step++) {
            int place = step % MOST;
            totals.add(tokens[place], paddedTokens[place], flops[place], millis[place]);
        }
        return totals;
    }
}
