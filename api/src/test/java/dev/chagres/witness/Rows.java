package dev.chagres.witness;

import java.util.function.DoubleBinaryOperator;
import java.util.function.DoubleUnaryOperator;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;

/**
 * Element by element, row by row and column by column, for what {@link RealMatrix} lacks. Witnesses make {@link BlockRealMatrix}es: products of
 * others call a method for each element of each sum.
 */
final class Rows {
    private Rows() {}

    static RealMatrix map(RealMatrix x, DoubleUnaryOperator function) {
        return combine(x, x, (a, ignored) -> function.applyAsDouble(a));
    }

    static RealMatrix combine(RealMatrix x, RealMatrix y, DoubleBinaryOperator function) {
        RealMatrix z = new BlockRealMatrix(x.getRowDimension(), x.getColumnDimension());
        for (int row = 0; row < x.getRowDimension(); row++) {
            for (int column = 0; column < x.getColumnDimension(); column++) {
                z.setEntry(row, column, function.applyAsDouble(x.getEntry(row, column), y.getEntry(row, column)));
            }
        }
        return z;
    }

    static RealMatrix addToEach(RealMatrix x, double[] summand) {
        RealMatrix sum = x.copy();
        for (int row = 0; row < x.getRowDimension(); row++) {
            for (int column = 0; column < x.getColumnDimension(); column++) {
                sum.addToEntry(row, column, summand[column]);
            }
        }
        return sum;
    }

    /** The {@code count} columns from {@code first} on. */
    static RealMatrix columns(RealMatrix x, int first, int count) {
        return x.getSubMatrix(0, x.getRowDimension() - 1, first, first + count - 1);
    }

    /** Matrices with equally many rows as one, the first on the left. */
    static RealMatrix sideBySide(RealMatrix... parts) {
        int columns = 0;
        for (RealMatrix part : parts) {
            columns += part.getColumnDimension();
        }
        RealMatrix joined = new BlockRealMatrix(parts[0].getRowDimension(), columns);
        int first = 0;
        for (RealMatrix part : parts) {
            joined.setSubMatrix(part.getData(), 0, first);
            first += part.getColumnDimension();
        }
        return joined;
    }

    static double[] sum(RealMatrix x) {
        double[] sum = new double[x.getColumnDimension()];
        for (int row = 0; row < x.getRowDimension(); row++) {
            for (int column = 0; column < sum.length; column++) {
                sum[column] += x.getEntry(row, column);
            }
        }
        return sum;
    }
}
