package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;

/**
 * {@code y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))}, element by element.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Hendrycks and Gimpel, Gaussian error linear units (2016); {@code nvte_gelu}, {@code nvte_dgelu} in TE's
 * {@code activation.h}.
 */
public final class Gelu {
    private Gelu() {}

    /**
     * Enqueues the activation.
     *
     * @param x [T, F]
     * @param scope receives y, like {@code x}
     * @throws IllegalArgumentException when the device does not fit
     */
    public static Tensor forward(Tensor x, Scope scope) {
        Checks.floats(scope, "x", x);
        Tensor y = scope.like(x);
        Elementwise.gelu(scope.stream(), x.cell(), y.cell());
        return y;
    }

    /**
     * Enqueues the gradient.
     *
     * @param dy gradient of the output
     * @param x what forward was given
     * @param scope receives the gradient of {@code x}
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public static Tensor backward(Tensor dy, Tensor x, Scope scope) {
        Checks.floats(scope, "x", x);
        Checks.like(scope, "dy", dy, x.cell());
        Tensor dx = scope.like(x);
        Elementwise.geluBackward(scope.stream(), dy.cell(), x.cell(), dx.cell());
        return dx;
    }
}
