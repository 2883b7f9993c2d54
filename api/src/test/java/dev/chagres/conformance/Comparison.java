package dev.chagres.conformance;

import java.util.Map;
import java.util.TreeMap;
import org.apache.commons.math3.linear.RealMatrix;

/** Compares results with double precision, and remembers the largest errors for a line at the end of each class. */
public final class Comparison {
    private final Map<String, Tolerance> bounds = new TreeMap<>();
    private final Map<String, Double> frobenius = new TreeMap<>();
    private final Map<String, Double> element = new TreeMap<>();

    /** Has compared nothing yet. */
    public Comparison() {}

    /**
     * Checks norm and elements of the difference; NaN and infinities must stand where they are expected.
     *
     * @param magnitude least root mean square that errors are compared with: for results that are differences of larger numbers
     * @throws AssertionError with the element that is farthest off
     */
    public void check(String what, double[] expected, float[] actual, double magnitude, Tolerance tolerance) {
        if (expected.length != actual.length) {
            throw new AssertionError(what + ": expected " + expected.length + " elements, got " + actual.length);
        }
        double sumOfSquares = 0;
        double sumOfDifferences = 0;
        int finite = 0;
        for (int i = 0; i < expected.length; i++) {
            if (Double.isNaN(expected[i]) || Double.isInfinite(expected[i])) {
                if (Double.compare(expected[i], actual[i]) != 0) {
                    throw new AssertionError(what + "[" + i + "]: expected " + expected[i] + ", got " + actual[i]);
                }
                continue;
            }
            finite++;
            sumOfSquares += expected[i] * expected[i];
            sumOfDifferences += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        }
        double scale = finite == 0 ? 0 : Math.max(magnitude, Math.sqrt(sumOfSquares / finite));
        int worst = worst(expected, actual, scale);
        double relative = ratio(Math.sqrt(sumOfDifferences), scale * Math.sqrt(finite));
        double largest = worst < 0 ? 0 : error(expected[worst], actual[worst], scale);
        remember(tolerance, relative, largest);
        if (!(relative <= tolerance.frobenius() && largest <= tolerance.element())) {
            throw new AssertionError(what + " (" + tolerance + "): norm of the difference " + relative
                    + ", largest difference " + largest + " at [" + worst + "]: expected "
                    + expected[Math.max(worst, 0)] + ", got " + actual[Math.max(worst, 0)]);
        }
    }

    private static int worst(double[] expected, float[] actual, double scale) {
        int worst = -1;
        double largest = -1;
        for (int i = 0; i < expected.length; i++) {
            if (Double.isNaN(expected[i]) || Double.isInfinite(expected[i])) {
                continue;
            }
            double error = error(expected[i], actual[i], scale);
            if (!(error <= largest)) {
                largest = error;
                worst = i;
            }
        }
        return worst;
    }

    private static double error(double expected, double actual, double scale) {
        return ratio(Math.abs(actual - expected), Math.max(Math.abs(expected), scale));
    }

    private static double ratio(double difference, double size) {
        return difference == 0 ? 0 : difference / size;
    }

    private void remember(Tolerance tolerance, double relative, double largest) {
        bounds.put(tolerance.name(), tolerance);
        frobenius.merge(tolerance.name(), relative, Math::max);
        element.merge(tolerance.name(), largest, Math::max);
    }

    /** Returns the largest errors met, each with its bound. */
    public String report() {
        StringBuilder report = new StringBuilder();
        bounds.forEach((name, bound) -> report.append(String.format(
                java.util.Locale.ROOT,
                "  %-32s norm %.1e of %.1e, element %.1e of %.1e%n",
                name,
                frobenius.get(name),
                bound.frobenius(),
                element.get(name),
                bound.element())));
        return report.toString();
    }

    /** Returns the entries of {@code matrix}, row by row. */
    public static double[] entries(RealMatrix matrix) {
        double[] entries = new double[matrix.getRowDimension() * matrix.getColumnDimension()];
        for (int row = 0; row < matrix.getRowDimension(); row++) {
            System.arraycopy(
                    matrix.getRow(row), 0, entries, row * matrix.getColumnDimension(), matrix.getColumnDimension());
        }
        return entries;
    }
}
