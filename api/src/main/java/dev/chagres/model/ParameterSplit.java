package dev.chagres.model;

import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import java.util.List;

/**
 * Which part of a parameter one of several tensor-parallel ranks keeps: along one dimension, which has sections, the rank-th of
 * {@code ranks} equal parts of each section, one behind the other.
 *
 * <p>The weight [3 h d, H] of query, key and value is so split by rows, with a section each: a rank has all three of its heads.
 *
 * <p>Threading: immutable.
 *
 * @param whole the shape of the whole parameter
 * @param dimension that is split
 * @param sections sizes along that dimension, which add up to it; {@code ranks} divides each
 * @param rank from 0 to {@code ranks - 1}
 * @param ranks number of parts
 */
public record ParameterSplit(Shape whole, int dimension, List<Long> sections, int rank, int ranks) {
    /**
     * Checks that the sections fill the dimension, and can be divided.
     *
     * @throws IllegalArgumentException when they do not, or there is no such dimension or rank
     */
    public ParameterSplit {
        Checks.given("whole", whole);
        sections = List.copyOf(Checks.given("sections", sections));
        if (dimension < 0 || dimension >= whole.rank()) {
            throw new IllegalArgumentException("dimension: expected 0 to " + (whole.rank() - 1) + ", got " + dimension);
        }
        if (rank < 0 || rank >= ranks) {
            throw new IllegalArgumentException("rank: expected one of " + ranks + ", got " + rank);
        }
        long sum = 0;
        for (long section : sections) {
            if (section < 1 || section % ranks != 0) {
                throw new IllegalArgumentException(
                        "sections: expected multiples of the " + ranks + " ranks, got " + sections);
            }
            sum += section;
        }
        if (sum != whole.size(dimension)) {
            throw new IllegalArgumentException("sections: expected sizes that add up to " + whole.size(dimension)
                    + " of " + whole + ", got " + sections);
        }
    }

    /** Returns the shape of the rank's part. */
    public Shape shape() {
        long[] sizes = whole.sizes();
        sizes[dimension] /= ranks;
        return new Shape(sizes);
    }

    /** Returns the part that another rank keeps. */
    public ParameterSplit of(int otherRank) {
        return new ParameterSplit(whole, dimension, sections, otherRank, ranks);
    }

    /** Returns the number in the whole, row-major, of an element of the rank's part. */
    public long element(long local) {
        long inner = 1;
        for (int i = dimension + 1; i < whole.rank(); i++) {
            inner *= whole.size(i);
        }
        long size = whole.size(dimension);
        long row = local / inner;
        long outer = row / (size / ranks);
        return (outer * size + place(row % (size / ranks))) * inner + local % inner;
    }

    /** Returns where along the whole dimension the rank's {@code index}-th place lies. */
    private long place(long index) {
        long begin = 0;
        for (long section : sections) {
            long part = section / ranks;
            if (index < part) {
                return begin + rank * part + index;
            }
            index -= part;
            begin += section;
        }
        throw new IndexOutOfBoundsException("element: expected one of " + shape());
    }

    /** Returns how many elements, side by side in a part and in the whole, are moved as one: a divisor of what each section has. */
    public long run() {
        long inner = 1;
        for (int i = dimension + 1; i < whole.rank(); i++) {
            inner *= whole.size(i);
        }
        long common = 0;
        for (long section : sections) {
            common = greatestDivisor(section / ranks, common);
        }
        return common * inner;
    }

    private static long greatestDivisor(long a, long b) {
        return b == 0 ? a : greatestDivisor(b, a % b);
    }
}
