package dev.chagres.witness;

import org.apache.commons.math3.linear.RealMatrix;
import org.apache.commons.math3.special.Erf;

/** {@code y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))}. */
public final class GeluWitness {
    private static final double FACTOR = Math.sqrt(2 / Math.PI);
    private static final double CUBIC = 0.044715;

    private RealMatrix input;

    /** Returns the function's value. */
    public static double value(double x) {
        return x / 2 * (1 + Math.tanh(FACTOR * (x + CUBIC * x * x * x)));
    }

    /** Returns the function's derivative. */
    public static double derivative(double x) {
        double tanh = Math.tanh(FACTOR * (x + CUBIC * x * x * x));
        return (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * FACTOR * (1 + 3 * CUBIC * x * x);
    }

    /** Returns {@code x / 2 (1 + erf(x / sqrt(2)))}. */
    public static double exactValue(double x) {
        return x / 2 * Erf.erfc(-x / Math.sqrt(2));
    }

    /** Returns its derivative. */
    public static double exactDerivative(double x) {
        return Erf.erfc(-x / Math.sqrt(2)) / 2 + x * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
    }

    /** Returns y. */
    public RealMatrix forward(RealMatrix x) {
        input = x;
        return Rows.map(x, GeluWitness::value);
    }

    /** Returns the gradient of x. */
    public RealMatrix backward(RealMatrix dy) {
        return Rows.combine(dy, input, (gradient, x) -> gradient * derivative(x));
    }
}
