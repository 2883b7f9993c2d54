package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;

/**
 * {@code y = norm(x) W^T + b}.
 *
 * <p>Parameters: those of {@link LayerNorm} or {@link RmsNorm} under {@code norm}, those of {@link Linear} under
 * {@code linear}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code LayerNormLinear}.
 */
public final class LayerNormLinear {
    private final NormLayer norm;
    private final Linear linear;

    /** Declares the parameters in {@code plan}: {@code outputs} columns from those of the norm. */
    public LayerNormLinear(NormConfig normConfig, long outputs, Initializer initializer, ParameterPlan plan) {
        norm = NormLayer.of(normConfig, plan.child("norm"));
        linear = new Linear(normConfig.size(), outputs, initializer, plan.child("linear"));
    }

    /**
     * What backward needs.
     *
     * @param norm of the norm
     * @param linear of the product
     */
    public record Saved(NormLayer.Saved norm, Linear.Saved linear) {
        /** Returns y. */
        public Tensor output() {
            return linear.output();
        }
    }

    /** Returns the norm. */
    public NormLayer norm() {
        return norm;
    }

    /** Returns the product. */
    public Linear linear() {
        return linear;
    }

    /**
     * Enqueues norm and product.
     *
     * @param x [T, H], in the type of the weights
     * @param scope receives y, [T, out]
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Saved forward(Tensor x, Scope scope) {
        NormLayer.Saved normed = norm.forward(x, scope);
        Linear.Saved product = linear.forward(normed.output(), scope);
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.norm != normed || saved.linear != product) {
            saved = new Saved(normed, product);
        }
        return scope.keep(saved);
    }

    /**
     * Enqueues the gradients: of the parameters, and of the input.
     *
     * @param dy gradient of the output, [T, out]
     * @param scope receives the gradient of the input, [T, H]
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        Tensor dnormed = linear.backward(dy, saved.linear, accumulation, scope);
        return norm.backward(dnormed, saved.norm, accumulation, scope);
    }

    /** Checks that a record is of this layer and still holds what its forward left there. */
    void check(Saved saved, Scope scope) {
        norm.check(saved.norm, scope);
        linear.check(saved.linear, scope);
    }

    /** Enqueues the same gradients, with {@code dx = dresidual + } that of the input; {@code dx} may be {@code dresidual}. */
    void backwardSum(Tensor dy, Saved saved, Tensor dresidual, Tensor dx, Accumulation accumulation, Scope scope) {
        Tensor dnormed = linear.backward(dy, saved.linear, accumulation, scope);
        norm.backwardSum(dnormed, saved.norm, dresidual, dx, accumulation, scope);
    }
}
