package dev.chagres;

/**
 * Equally spaced rows of elements of a tensor: row r has the elements from {@code offset + r pitch} to before {@code offset + r pitch +
 * columns}. A slice of a row-major tensor along one dimension is such a rectangle.
 *
 * <p>Threading: immutable.
 *
 * @param offset first element
 * @param rows how many rows
 * @param columns elements of each
 * @param pitch elements from the beginning of a row to the beginning of the next row, at least {@code columns}
 */
public record Rectangle(long offset, long rows, long columns, long pitch) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is negative, rows overlap, or the end does not fit into a long
     */
    public Rectangle {
        if (offset < 0 || rows < 0 || columns < 0) {
            throw new IllegalArgumentException("offset, rows, columns: expected no negative number, got " + offset
                    + ", " + rows + " and " + columns);
        }
        if (pitch < columns) {
            throw new IllegalArgumentException(
                    "pitch: expected at least the " + columns + " elements of a row, got " + pitch);
        }
        try {
            var _ = Math.addExact(offset, Math.addExact(Math.multiplyExact(Math.max(0, rows - 1), pitch), columns));
        } catch (ArithmeticException tooMany) {
            throw new IllegalArgumentException(
                    "rows: expected fewer elements than a long can count, got " + rows + " of pitch " + pitch, tooMany);
        }
    }

    /** Returns the index after the last element; {@code offset} if there is no element. */
    public long end() {
        return rows == 0 || columns == 0 ? offset : offset + (rows - 1) * pitch + columns;
    }
}
