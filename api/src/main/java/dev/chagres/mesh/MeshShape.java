package dev.chagres.mesh;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import java.util.Arrays;
import java.util.Locale;

/**
 * How many ranks a {@link Mesh} has along each dimension: {@code MeshShape.ofOne().with(SHARD, 2).with(TENSOR, 4)}.
 *
 * <p>Threading: immutable.
 */
public final class MeshShape {
    private final int[] sizes;

    private MeshShape(int... sizes) {
        this.sizes = sizes;
    }

    /** Returns the shape of one rank, with size 1 along each dimension. */
    public static MeshShape ofOne() {
        int[] ones = new int[MeshDimension.values().length];
        Arrays.fill(ones, 1);
        return new MeshShape(ones);
    }

    /**
     * Returns the same with {@code size} ranks along {@code dimension}.
     *
     * @throws IllegalArgumentException when the size is not positive, or there are too many ranks to count
     */
    public MeshShape with(MeshDimension dimension, int size) {
        Checks.given("dimension", dimension);
        if (size < 1) {
            throw new IllegalArgumentException("size: expected at least 1 along " + dimension + ", got " + size);
        }
        int[] changed = sizes.clone();
        changed[dimension.ordinal()] = size;
        long ranks = 1;
        for (int one : changed) {
            ranks *= one;
            if (ranks > Integer.MAX_VALUE) {
                throw new IllegalArgumentException("size: expected at most " + Integer.MAX_VALUE + " ranks in all, got "
                        + size + " along " + dimension);
            }
        }
        return new MeshShape(changed);
    }

    /** Returns the number of ranks along {@code dimension}. */
    public int size(MeshDimension dimension) {
        return sizes[Checks.given("dimension", dimension).ordinal()];
    }

    /** Returns the number of all ranks: the product of the sizes. */
    public int ranks() {
        int ranks = 1;
        for (int size : sizes) {
            ranks *= size;
        }
        return ranks;
    }

    /** Returns the difference of the numbers of two ranks that are neighbours along {@code dimension}. */
    int stride(MeshDimension dimension) {
        int stride = 1;
        for (int i = dimension.ordinal() + 1; i < sizes.length; i++) {
            stride *= sizes[i];
        }
        return stride;
    }

    /**
     * Returns the coordinate of {@code rank} along {@code dimension}.
     *
     * @throws IllegalArgumentException when there is no such rank
     */
    public int coordinate(MeshDimension dimension, int rank) {
        Checks.given("dimension", dimension);
        Numbers.within("rank", rank, 0, ranks() - 1L);
        return rank / stride(dimension) % size(dimension);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof MeshShape shape && Arrays.equals(sizes, shape.sizes);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(sizes);
    }

    /** Returns the sizes that are not 1, such as {@code shard=2,tensor=4}; {@code one rank} when all are. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        for (MeshDimension dimension : MeshDimension.values()) {
            if (size(dimension) != 1) {
                text.append(text.isEmpty() ? "" : ",")
                        .append(dimension.name().toLowerCase(Locale.ROOT))
                        .append('=')
                        .append(size(dimension));
            }
        }
        return text.isEmpty() ? "one rank" : text.toString();
    }
}
