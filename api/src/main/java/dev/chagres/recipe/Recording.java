package dev.chagres.recipe;

/**
 * Whether a cast writes down the largest magnitude that it saw, for the scales of later steps.
 *
 * <p>Threading: immutable.
 */
public enum Recording {
    /** It does: training. */
    ON,
    /** It leaves the recipe's state as it is: evaluation. */
    OFF
}
