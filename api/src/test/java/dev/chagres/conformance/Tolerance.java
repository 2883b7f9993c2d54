package dev.chagres.conformance;

/**
 * How far a result may lie from the double-precision one.
 *
 * @param name of the row in {@link Tolerances}
 * @param frobenius bound on the norm of the difference over the norm of the expected values
 * @param element bound on one difference over the larger of the expected value and the root mean square of all
 */
public record Tolerance(String name, double frobenius, double element) {
    /** Returns the same bounds under another name. */
    public Tolerance named(String other) {
        return new Tolerance(other, frobenius, element);
    }
}
