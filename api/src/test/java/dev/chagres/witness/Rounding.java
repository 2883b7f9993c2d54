package dev.chagres.witness;

import dev.chagres.DType;
import org.apache.commons.math3.linear.DefaultRealMatrixChangingVisitor;
import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.linear.RealMatrixChangingVisitor;

/** Rounds doubles to the numbers that a type can hold, to nearest, ties to even, by arithmetic and not by bits. */
public final class Rounding {
    private Rounding() {}

    /** Returns the number of {@code dtype} that is nearest to {@code value}. */
    public static double round(double value, DType dtype) {
        return switch (dtype) {
            case FLOAT32 -> round(value, 24, -126, Float.MAX_VALUE);
            case BFLOAT16 -> round(value, 8, -126, 0x1.FEp127);
            case FLOAT16 -> round(value, 11, -14, 65504);
            default -> throw new IllegalArgumentException("no floating-point type: " + dtype);
        };
    }

    private static double round(double value, int precision, int leastExponent, double largest) {
        if (Double.isNaN(value) || Double.isInfinite(value)) {
            return value;
        }
        int exponent = Math.max(Math.getExponent(value), leastExponent);
        double unit = Math.scalb(1.0, exponent - precision + 1);
        double rounded = Math.rint(value / unit) * unit;
        return Math.abs(rounded) > largest ? Math.copySign(Double.POSITIVE_INFINITY, value) : rounded;
    }

    /** Rounds every element of {@code values} in place and returns it. */
    public static double[] round(double[] values, DType dtype) {
        for (int i = 0; i < values.length; i++) {
            values[i] = round(values[i], dtype);
        }
        return values;
    }

    /** Rounds every entry of {@code matrix} in place and returns it. */
    public static RealMatrix round(RealMatrix matrix, DType dtype) {
        RealMatrixChangingVisitor visitor = new DefaultRealMatrixChangingVisitor() {
            @Override
            public double visit(int row, int column, double value) {
                return round(value, dtype);
            }
        };
        matrix.walkInRowOrder(visitor);
        return matrix;
    }
}
