package dev.chagres.witness;

import dev.chagres.DType;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.QuantizationConfig.Scales;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;

/** What eight-bit products see of a matrix: {@code round(x scale) / scale}, with one scale or one for each block. */
public final class QuantizedMatrixWitness {
    private static final int BLOCK = 128;

    private QuantizedMatrixWitness() {}

    /** Returns the largest magnitude. */
    public static double amax(RealMatrix x) {
        double largest = 0;
        for (double[] row : x.getData()) {
            for (double value : row) {
                largest = Math.max(largest, Math.abs(value));
            }
        }
        return largest;
    }

    /** Returns the scale that current scaling finds, as the FLOAT32 number that it is. */
    public static double scale(double amax, DType type, QuantizationConfig config) {
        double used = Math.max(amax, config.amaxEpsilon());
        if (used == 0) {
            return 1;
        }
        float scale = (float) Float8Witness.largest(type) / (float) used;
        return config.scales() == Scales.POWER_OF_2 ? Math.scalb(1.0, Math.getExponent(scale)) : scale;
    }

    /** Returns what is seen of {@code x} under one scale. */
    public static RealMatrix seen(RealMatrix x, DType type, double scale) {
        double inverse = 1 / (float) scale;
        RealMatrix seen = new BlockRealMatrix(x.getRowDimension(), x.getColumnDimension());
        for (int row = 0; row < x.getRowDimension(); row++) {
            for (int column = 0; column < x.getColumnDimension(); column++) {
                seen.setEntry(
                        row,
                        column,
                        Float8Witness.quantized(x.getEntry(row, column), (float) scale, type) * (float) inverse);
            }
        }
        return seen;
    }

    /** Returns what is seen of {@code x} with a scale for each block of {@code height} rows by {@code width} columns. */
    public static RealMatrix seenByBlocks(RealMatrix x, DType type, int height, int width, QuantizationConfig config) {
        RealMatrix seen = x.copy();
        for (int row = 0; row < x.getRowDimension(); row += height) {
            for (int column = 0; column < x.getColumnDimension(); column += width) {
                int lastRow = Math.min(row + height, x.getRowDimension()) - 1;
                int lastColumn = Math.min(column + width, x.getColumnDimension()) - 1;
                RealMatrix block = x.getSubMatrix(row, lastRow, column, lastColumn);
                seen.setSubMatrix(
                        seen(block, type, scale(amax(block), type, config)).getData(), row, column);
            }
        }
        return seen;
    }

    /** Returns what is seen of an input or gradient along its rows: a scale for every 128 values. */
    public static RealMatrix seenByRows(RealMatrix x, DType type, QuantizationConfig config) {
        return seenByBlocks(x, type, 1, BLOCK, config);
    }

    /** Returns what is seen of an input or gradient along its columns. */
    public static RealMatrix seenByColumns(RealMatrix x, DType type, QuantizationConfig config) {
        return seenByBlocks(x, type, BLOCK, 1, config);
    }

    /** Returns what is seen of a weight: a scale for every 128 by 128 values. */
    public static RealMatrix seenBySquares(RealMatrix x, DType type, QuantizationConfig config) {
        return seenByBlocks(x, type, BLOCK, BLOCK, config);
    }
}
