package dev.chagres.te;

/**
 * How a row of a gated activation's input holds the columns of a and b: as halves, {@code [a, b]}, or interleaved, {@code interleaveSize}
 * columns of a, as many of b, then the next of a.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code glu_interleave_size} in TE's {@code activation.h}.
 *
 * @param interleaveSize columns of a, or of b, at a time, a multiple of 32; 0 for halves
 */
public record GluLayout(int interleaveSize) {
    private static final int UNIT = 32;

    /** All of a, then all of b. */
    public static final GluLayout HALVES = new GluLayout(0);

    /**
     * Checks the number.
     *
     * @throws IllegalArgumentException when it is negative or no multiple of 32
     */
    public GluLayout {
        if (interleaveSize < 0 || interleaveSize % UNIT != 0) {
            throw new IllegalArgumentException("interleaveSize: expected 0, which stands for halves, or a multiple of "
                    + UNIT + ", got " + interleaveSize);
        }
    }

    /**
     * Returns the layout that interleaves {@code interleaveSize} columns of a with as many of b.
     *
     * @throws IllegalArgumentException when the number is not positive or no multiple of 32
     */
    public static GluLayout interleaved(int interleaveSize) {
        if (interleaveSize <= 0) {
            throw new IllegalArgumentException(
                    "interleaveSize: expected a positive multiple of " + UNIT + ", got " + interleaveSize);
        }
        return new GluLayout(interleaveSize);
    }

    /** Checks that {@code columns} of a fit this layout. */
    void check(String argument, long columns) {
        if (interleaveSize != 0 && columns % interleaveSize != 0) {
            throw new IllegalArgumentException("layout: expected an interleave size that divides the " + columns
                    + " columns of " + argument + ", got " + interleaveSize);
        }
    }
}
