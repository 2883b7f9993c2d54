package dev.chagres;

/**
 * How many elements of a {@link QuantizedTensor} share a scale.
 *
 * <p>An FP8 number q has the value {@code q scaleInverse}; quantizing x stores {@code q = x scale}, rounded to nearest even and clamped to
 * the range of the type, where {@code scaleInverse = 1 / scale}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTEScalingMode} in TE's {@code transformer_engine.h}.
 */
public enum Scaling {
    /** All elements: one scale, given by the caller, for rowwise and columnwise data. */
    TENSOR(0),
    /** 128 neighbouring elements of a row. Quantizing computes the scales. */
    BLOCK_1D(2),
    /** 128 rows by 128 columns. Quantizing computes the scales. */
    BLOCK_2D(3);

    /** Elements along a side of a block. */
    public static final long BLOCK = 128;

    private final int code;

    Scaling(int code) {
        this.code = code;
    }

    /** Returns TE's number for this scaling. */
    public int code() {
        return code;
    }

    /**
     * Returns the shape of the scale inverse of rowwise data of these sizes, FLOAT32: for TENSOR [1]; for BLOCK_1D [ceil(columns / 128),
     * rows], block by block, the rows rounded up to a multiple of 4; for BLOCK_2D [ceil(rows / 128), ceil(columns / 128)], the second
     * rounded up to a multiple of 4. For columnwise data, the transpose, swap the sizes.
     *
     * @throws IllegalArgumentException when a size is negative
     */
    public Shape scaleInverseShape(long rows, long columns) {
        if (rows < 0 || columns < 0) {
            throw new IllegalArgumentException("shape: expected no negative size, got [" + rows + ", " + columns + "]");
        }
        return this == TENSOR
                ? Shape.of(1)
                : Shape.of(scaleInverseRows(rows, columns), scaleInverseColumns(rows, columns));
    }

    /** Returns the first size of the scale inverse of rowwise data, in blocks. */
    long scaleInverseRows(long rows, long columns) {
        return ceilDiv(this == BLOCK_1D ? columns : rows);
    }

    /** Returns the second size of the scale inverse of rowwise data, in blocks. */
    long scaleInverseColumns(long rows, long columns) {
        long scales = this == BLOCK_1D ? rows : ceilDiv(columns);
        return (scales + 3) / 4 * 4;
    }

    private static long ceilDiv(long elements) {
        return elements / BLOCK + (elements % BLOCK == 0 ? 0 : 1);
    }
}
