package dev.chagres.cudnn;

import dev.chagres.internal.Checks;
import java.util.Collections;
import java.util.List;

/**
 * Windows of a resampling; each list has a number for each spatial dimension.
 *
 * <p>Threading: immutable.
 *
 * @param mode what a window gives
 * @param window its sizes
 * @param strides elements from one window to the next
 * @param prePadding elements before the first, which count as 0 in averages and never are a maximum
 * @param postPadding elements behind the last
 */
public record ResampleConfig(
        ResampleMode mode, List<Long> window, List<Long> strides, List<Long> prePadding, List<Long> postPadding) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the lists are not equally long, a padding is negative, or a size or stride is below 1
     */
    public ResampleConfig {
        Checks.given("mode", mode);
        window = Checks.givenAll("window", window);
        strides = Checks.givenAll("strides", strides);
        prePadding = Checks.givenAll("prePadding", prePadding);
        postPadding = Checks.givenAll("postPadding", postPadding);
        int count = window.size();
        ConvolutionConfig.atLeast("window", window, count, 1);
        ConvolutionConfig.atLeast("strides", strides, count, 1);
        ConvolutionConfig.atLeast("prePadding", prePadding, count, 0);
        ConvolutionConfig.atLeast("postPadding", postPadding, count, 0);
    }

    /** Windows that touch: strides of their sizes, no padding. */
    public static ResampleConfig of(ResampleMode mode, long... window) {
        List<Long> sizes = ConvolutionConfig.listOf("window", window);
        List<Long> zeros = Collections.nCopies(sizes.size(), 0L);
        return new ResampleConfig(mode, sizes, sizes, zeros, zeros);
    }

    /** Returns the same with other strides. */
    public ResampleConfig withStrides(long... newStrides) {
        return new ResampleConfig(
                mode, window, ConvolutionConfig.listOf("newStrides", newStrides), prePadding, postPadding);
    }

    /** Returns the same with as much padding before the first as behind the last element. */
    public ResampleConfig withPadding(long... padding) {
        List<Long> both = ConvolutionConfig.listOf("padding", padding);
        return new ResampleConfig(mode, window, strides, both, both);
    }

    /** Returns the result's size along a spatial dimension, not positive where no window fits. */
    long resultSize(int spatialDim, long image) {
        long room = image + prePadding.get(spatialDim) + postPadding.get(spatialDim) - window.get(spatialDim);
        return room < 0 ? 0 : room / strides.get(spatialDim) + 1;
    }
}
