package dev.chagres.mesh;

/**
 * What one of several ranks has of a dimension.
 *
 * <p>Threading: immutable.
 *
 * @param begin first element
 * @param count elements, 0 where nothing is left
 */
record OwnedSlice(long begin, long count) {
    /** Returns the elements of the largest stretch of {@code size} elements over {@code ranks}. */
    static long largest(long size, int ranks) {
        return Math.ceilDiv(size, (long) ranks);
    }

    /** Returns that of {@code rank}. */
    static OwnedSlice of(long size, int ranks, int rank) {
        long largest = largest(size, ranks);
        long begin = Math.min(size, rank * largest);
        return new OwnedSlice(begin, Math.min(largest, size - begin));
    }
}
