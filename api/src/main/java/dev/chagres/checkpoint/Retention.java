package dev.chagres.checkpoint;

/**
 * Which checkpoints of a run stay when another one is published; the latest always does. One stays for each reason that holds.
 *
 * <p>Threading: immutable.
 *
 * @param last so many stay, the latest ones; 0 for all
 * @param every those stay whose step divides by this; 0 for none
 * @param best so many stay, whose {@link #METRIC} is lowest; 0 for none
 */
public record Retention(int last, int every, int best) {
    /** The key of the text in a checkpoint by which {@code best} chooses: a number, such as the loss of held-out data. */
    public static final String METRIC = "metric";

    /** All stay. */
    public static final Retention ALL = new Retention(0, 0, 0);

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is negative, or {@code every} or {@code best} is given though all stay
     */
    public Retention {
        ensureNotNegative("last", last);
        ensureNotNegative("every", every);
        ensureNotNegative("best", best);
        if (last == 0 && (every != 0 || best != 0)) {
            throw new IllegalArgumentException("last: expected at least 1 beside every " + every + " and best " + best
                    + ", for 0 keeps all, got 0");
        }
    }

    private static void ensureNotNegative(String name, int value) {
        if (value < 0) {
            throw new IllegalArgumentException(name + ": expected 0 or more, got " + value);
        }
    }
}
