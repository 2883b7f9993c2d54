package dev.chagres.cudnn;

import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * How a filter moves over the spatial dimensions of a convolution; each list has a number for each of them.
 *
 * <p>Threading: immutable.
 *
 * @param prePadding zeros before the first element
 * @param postPadding zeros behind the last element
 * @param strides elements from one place of the filter to the next
 * @param dilations elements from one tap of the filter to the next
 * @param mode whether the filter is reversed
 */
public record ConvolutionConfig(
        List<Long> prePadding, List<Long> postPadding, List<Long> strides, List<Long> dilations, Mode mode) {
    /**
     * Whether a filter is reversed.
     *
     * <p>Threading: immutable.
     */
    public enum Mode {
        /** The filter is reversed along each spatial dimension, as mathematics has it. */
        CONVOLUTION,
        /** The filter lies as it is, as neural networks have it. */
        CROSS_CORRELATION
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the lists are not equally long, a padding is negative, or a stride or dilation is below 1
     */
    public ConvolutionConfig {
        prePadding = Checks.givenAll("prePadding", prePadding);
        postPadding = Checks.givenAll("postPadding", postPadding);
        strides = Checks.givenAll("strides", strides);
        dilations = Checks.givenAll("dilations", dilations);
        Checks.given("mode", mode);
        int count = strides.size();
        atLeast("prePadding", prePadding, count, 0);
        atLeast("postPadding", postPadding, count, 0);
        atLeast("strides", strides, count, 1);
        atLeast("dilations", dilations, count, 1);
    }

    /** Checks numbers of {@code count} spatial dimensions. */
    static void atLeast(String argument, List<Long> numbers, int count, long least) {
        boolean fits = numbers.size() == count && count != 0;
        for (long number : numbers) {
            fits = fits && number >= least && number <= Integer.MAX_VALUE;
        }
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected a number of at least " + least + " for each of "
                    + count + " spatial dimensions, got " + numbers);
        }
    }

    static List<Long> listOf(String argument, long... numbers) {
        return Arrays.stream(Checks.given(argument, numbers)).boxed().toList();
    }

    /**
     * A cross-correlation without padding, with strides and dilations of 1.
     *
     * @param spatialDims dimensions behind those of the batch and the channels
     * @throws IllegalArgumentException when {@code spatialDims} is not from 1 to 6, as a tensor has at most eight dimensions
     */
    public static ConvolutionConfig of(int spatialDims) {
        if (spatialDims < 1 || spatialDims > Cudnn.CUDNN_DIM_MAX() - 2) {
            throw new IllegalArgumentException("spatialDims: expected 1 to " + (Cudnn.CUDNN_DIM_MAX() - 2)
                    + " spatial dimensions, got " + spatialDims);
        }
        List<Long> zeros = Collections.nCopies(spatialDims, 0L);
        List<Long> ones = Collections.nCopies(spatialDims, 1L);
        return new ConvolutionConfig(zeros, zeros, ones, ones, Mode.CROSS_CORRELATION);
    }

    /** Returns the same with as many zeros before the first as behind the last element. */
    public ConvolutionConfig withPadding(long... padding) {
        List<Long> both = listOf("padding", padding);
        return new ConvolutionConfig(both, both, strides, dilations, mode);
    }

    /** Returns the same with other strides. */
    public ConvolutionConfig withStrides(long... newStrides) {
        return new ConvolutionConfig(prePadding, postPadding, listOf("newStrides", newStrides), dilations, mode);
    }

    /** Returns the same with other dilations. */
    public ConvolutionConfig withDilations(long... newDilations) {
        return new ConvolutionConfig(prePadding, postPadding, strides, listOf("newDilations", newDilations), mode);
    }

    /** Returns the same with a filter that is or is not reversed. */
    public ConvolutionConfig withMode(Mode newMode) {
        return new ConvolutionConfig(prePadding, postPadding, strides, dilations, newMode);
    }

    /** Returns the result's size along a spatial dimension, not positive where no filter fits. */
    long resultSize(int spatialDim, long image, long filter) {
        long room = image
                + prePadding.get(spatialDim)
                + postPadding.get(spatialDim)
                - (filter - 1) * dilations.get(spatialDim)
                - 1;
        return room < 0 ? 0 : room / strides.get(spatialDim) + 1;
    }

    static long[] array(List<Long> numbers) {
        return numbers.stream().mapToLong(Long::longValue).toArray();
    }
}
