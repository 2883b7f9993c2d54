package dev.chagres;

import java.util.Arrays;

/**
 * Sizes of a tensor's dimensions, outermost first, at most {@value #MAX_RANK}.
 *
 * <p>Threading: immutable.
 *
 * @param sizes one entry a dimension, none negative
 */
public record Shape(long... sizes) {
    /** Most dimensions a tensor here has. */
    public static final int MAX_RANK = 4;

    /**
     * Checks and copies the sizes.
     *
     * @throws IllegalArgumentException when there are more than {@value #MAX_RANK}, or one is negative
     */
    public Shape {
        if (Given.given("sizes", sizes).length > MAX_RANK) {
            throw new IllegalArgumentException(
                    "sizes: expected at most " + MAX_RANK + " dimensions, got " + Arrays.toString(sizes));
        }
        for (long size : sizes) {
            if (size < 0) {
                throw new IllegalArgumentException("sizes: expected no negative size, got " + Arrays.toString(sizes));
            }
        }
        sizes = sizes.clone();
    }

    /** Returns a shape of these sizes. */
    public static Shape of(long... sizes) {
        return new Shape(sizes);
    }

    /** Returns a copy of the sizes, outermost first. */
    @Override
    public long[] sizes() {
        return sizes.clone();
    }

    /** Returns the number of dimensions. */
    public int rank() {
        return sizes.length;
    }

    /**
     * Returns the size of dimension {@code index}, counted from 0.
     *
     * @throws IndexOutOfBoundsException when there is no such dimension
     */
    public long size(int index) {
        if (index < 0 || index >= sizes.length) {
            throw noDimension(index, sizes.length);
        }
        return sizes[index];
    }

    /** Makes the exception of a dimension that a shape of {@code rank} dimensions has not. */
    static IndexOutOfBoundsException noDimension(int index, int rank) {
        String expected = rank == 0 ? "none, for a scalar has no dimension" : "0 to " + (rank - 1);
        return new IndexOutOfBoundsException("index: expected " + expected + ", got " + index);
    }

    /**
     * Returns the product of all sizes: 1 for a scalar.
     *
     * @throws ArithmeticException when no long can hold it
     */
    public long count() {
        long count = 1;
        for (long size : sizes) {
            if (size == 0) {
                return 0;
            }
        }
        for (long size : sizes) {
            if (count > Long.MAX_VALUE / size) {
                throw new ArithmeticException(
                        "count of " + this + ": expected at most " + Long.MAX_VALUE + " elements");
            }
            count *= size;
        }
        return count;
    }

    /** Returns the product of the first {@code rank} sizes, none of them negative, or -1 when no long can hold it. */
    static long product(int rank, long d0, long d1, long d2, long d3) {
        long count = rank > 0 ? d0 : 1;
        count = rank > 1 ? product(count, d1) : count;
        count = rank > 2 ? product(count, d2) : count;
        return rank > 3 ? product(count, d3) : count;
    }

    private static long product(long count, long size) {
        return Math.multiplyHigh(count, size) == 0 && count * size >= 0 ? count * size : -1;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Shape shape && Arrays.equals(sizes, shape.sizes);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(sizes);
    }

    @Override
    public String toString() {
        return Arrays.toString(sizes);
    }
}
