package dev.chagres.recipe;

import dev.chagres.model.QuantizerSite;

/**
 * How well the eight-bit numbers at one place of a model stood for the tensor that they were made of, in the latest step that was
 * measured. {@link Quantizers#measureEvery} asks for it.
 *
 * <p>Shares are of all elements, rows of zeros among them that fill a number of tokens up.
 *
 * <p>Threading: immutable.
 *
 * @param site the place, which says name and role
 * @param step the number of steps that came before the one that was measured
 * @param amax the largest magnitude
 * @param underflows share of the elements that are not 0 and became 0
 * @param overflows share of the elements beyond the largest number that the type can stand for, by more than a thousandth
 * @param meanSquaredError average of the squared error of the cast
 * @param smallestScale smallest factor before rounding; one scale a tensor: the factor
 * @param largestScale largest factor before rounding
 */
public record CastStatistics(
        QuantizerSite site,
        long step,
        float amax,
        float underflows,
        float overflows,
        float meanSquaredError,
        float smallestScale,
        float largestScale) {}
