package dev.chagres;

/**
 * Rows of elements of a tensor, equally far apart: row r has elements {@code offset + r pitch} to before {@code offset + r pitch +
 * columns}. So a slice of a row-major tensor along one dimension is one.
 *
 * <p>Threading: immutable.
 *
 * @param offset first element
 * @param rows how many rows
 * @param columns elements of each
 * @param pitch elements from the beginning of a row to that of the next one, at least {@code columns}
 */
public record Rectangle(long offset, long rows, long columns, long pitch) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is negative, rows overlap, or no long can count to the end
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

    /** Returns the element behind the last one; {@code offset} where there is none. */
    public long end() {
        return rows == 0 || columns == 0 ? offset : offset + (rows - 1) * pitch + columns;
    }
}
