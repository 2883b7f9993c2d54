package dev.chagres.recipe;

/**
 * Whether a cast records the amax of its tensor, for the scales of later steps.
 *
 * <p>Threading: immutable.
 */
public enum AmaxRecording {
    /** Records: training. */
    ON,
    /** Does not change the recipe's state: evaluation. */
    OFF
}
