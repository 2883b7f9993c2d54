package dev.chagres.recipe;

import dev.chagres.parameter.QuantizerSite;

/**
 * How well the eight-bit numbers at one place of a model represented the tensor from which they were cast, in the latest measured step.
 * {@link Quantizers#measureEvery} turns the measurement on.
 *
 * <p>Shares are of all elements, including rows of zeros that pad the number of tokens.
 *
 * <p>Threading: immutable.
 *
 * @param site the place, with name and role
 * @param step the number of steps before the measured one
 * @param amax the largest magnitude
 * @param underflows share of the elements that are not 0 and became 0
 * @param overflows share of the elements that exceed the largest number of the type by more than a thousandth
 * @param meanSquaredError average of the squared error of the cast
 * @param smallestScale smallest factor before rounding; with one scale a tensor, that factor
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
