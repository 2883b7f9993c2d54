package dev.chagres.witness;

import java.util.function.ToDoubleFunction;
import org.apache.commons.math3.linear.RealMatrix;

/** Checks a gradient against central differences in double precision. */
final class FiniteDifferences {
    /** About the third root of the precision: where rounding and curvature are equally small. */
    private static final double STEP = 5e-6;

    private static final double TOLERANCE = 1e-7;

    private FiniteDifferences() {}

    /** Checks that {@code gradient} is that of {@code function} at {@code x}. */
    static void check(String what, ToDoubleFunction<RealMatrix> function, RealMatrix x, RealMatrix gradient) {
        double scale = Math.max(1, gradient.getNorm());
        for (int row = 0; row < x.getRowDimension(); row++) {
            for (int column = 0; column < x.getColumnDimension(); column++) {
                RealMatrix above = x.copy();
                above.addToEntry(row, column, STEP);
                RealMatrix below = x.copy();
                below.addToEntry(row, column, -STEP);
                double difference = (function.applyAsDouble(above) - function.applyAsDouble(below)) / (2 * STEP);
                double actual = gradient.getEntry(row, column);
                if (!(Math.abs(difference - actual) <= TOLERANCE * scale)) {
                    throw new AssertionError(what + "[" + row + ", " + column + "]: expected " + difference
                            + " by finite differences, got " + actual);
                }
            }
        }
    }
}
