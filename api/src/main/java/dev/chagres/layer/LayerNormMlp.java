package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;
import dev.chagres.internal.MatrixProduct;
import dev.chagres.internal.TensorCell;
import org.jspecify.annotations.Nullable;

/**
 * {@code y = gelu(norm(x) W1^T + b1) W2^T + b2}.
 *
 * <p>Parameters: the norm's under {@code norm}; {@code fc1} [F, H] and {@code fc2} [H, F] as {@link Linear}.
 *
 * <p>16-bit types run the activation in the product's epilogue; FLOAT32 runs it as a kernel of its own.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code LayerNormMLP}; {@code nvte_cublas_gemm_v2}, {@code nvte_gelu}, {@code nvte_dgelu}.
 */
public final class LayerNormMlp {
    private final FeedForwardConfig config;
    private final NormLayer norm;
    private final Linear fc1;
    private final Linear fc2;

    /** Declares the parameters in {@code plan}. */
    public LayerNormMlp(FeedForwardConfig config, ParameterPlan plan) {
        this.config = config;
        norm = NormLayer.of(config.norm(), plan.child("norm"));
        fc1 = new Linear(config.hidden(), config.inner(), config.inputInitializer(), plan.child("fc1"));
        fc2 = new Linear(config.inner(), config.hidden(), config.outputInitializer(), plan.child("fc2"));
    }

    /**
     * What backward needs.
     *
     * @param norm of the norm
     * @param preActivation {@code norm(x) W1^T + b1}, [T, F]
     * @param activated its activation; null when backward computes it again
     * @param output y
     */
    public record Saved(
            NormLayer.Saved norm,
            Tensor preActivation,
            @Nullable Tensor activated,
            Tensor output) {}

    /** Returns the norm. */
    public NormLayer norm() {
        return norm;
    }

    /** Returns the first product. */
    public Linear fc1() {
        return fc1;
    }

    /** Returns the second product. */
    public Linear fc2() {
        return fc2;
    }

    /**
     * Enqueues norm, products and activation.
     *
     * @param x [T, H], in the type of the weights
     * @param scope receives y, like x
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Saved forward(Tensor x, Scope scope) {
        return feedForward(norm.forward(x, scope), scope);
    }

    /** Enqueues {@code x = x + residual} in the place of {@code x}, then the same of the sum: the norm's saved input. */
    Saved forwardSum(Tensor x, Tensor residual, Scope scope) {
        return feedForward(norm.forwardSum(x, residual, scope), scope);
    }

    private Saved feedForward(NormLayer.Saved normed, Scope scope) {
        Tensor x = normed.input();
        long tokens = x.size(0);
        Tensor y = scope.like(x);
        Tensor preActivation = scope.tensor(x.dtype(), tokens, config.inner());
        Tensor activated = null;
        if (config.recomputation() == FeedForwardConfig.Recomputation.NONE) {
            activated = scope.like(preActivation);
            products(normed.output(), preActivation, activated, y, scope);
        } else {
            try (Scope temporary = scope.open()) {
                products(normed.output(), preActivation, temporary.like(preActivation), y, temporary);
            }
        }
        Saved saved = scope.recall(Saved.class);
        if (saved == null
                || saved.norm != normed
                || saved.preActivation != preActivation
                || saved.activated != activated
                || saved.output != y) {
            saved = new Saved(normed, preActivation, activated, y);
        }
        return scope.keep(saved);
    }

    private void products(Tensor normed, Tensor preActivation, Tensor activated, Tensor y, Scope scope) {
        Stream stream = scope.stream();
        if (normed.dtype() == DType.FLOAT32) {
            fc1.forward(normed, preActivation, scope);
            Elementwise.gelu(stream, preActivation.cell(), activated.cell());
        } else {
            product(scope)
                    .forwardBiasGelu(
                            stream,
                            normed.cell(),
                            fc1.weight().weight().cell(),
                            fc1.bias().weight().cell(),
                            preActivation.cell(),
                            activated.cell());
        }
        fc2.forward(activated, y, scope);
    }

    /**
     * Enqueues the gradients: of the parameters, and of the input.
     *
     * @param dy gradient of the output, like it
     * @param scope receives the gradient of the input, like it
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        return norm.backward(gradientOfNormed(dy, saved, accumulation, scope), saved.norm, accumulation, scope);
    }

    /** Checks that a record is of this layer and still holds what its forward left there. */
    void check(Saved saved, Scope scope) {
        norm.check(saved.norm, scope);
        TensorCell input = saved.norm.input().cell();
        Tensor before = saved.preActivation;
        Checks.matrix(scope, "saved.preActivation", before, input.dtype(), input.size(0), config.inner());
        boolean kept = config.recomputation() == FeedForwardConfig.Recomputation.NONE;
        Tensor activated = saved.activated;
        if (kept != (activated != null)) {
            throw new IllegalArgumentException("saved.activated: expected "
                    + (kept ? "the activation" : "none, for it is recomputed") + ", got " + activated);
        }
        if (activated != null) {
            Checks.like(scope, "saved.activated", activated, before.cell());
        }
        Checks.like(scope, "saved.output", saved.output, input);
    }

    /** Enqueues the same gradients, with {@code dx = dresidual + } that of the input; {@code dx} may be {@code dresidual}. */
    void backwardSum(Tensor dy, Saved saved, Tensor dresidual, Tensor dx, Accumulation accumulation, Scope scope) {
        Tensor dnormed = gradientOfNormed(dy, saved, accumulation, scope);
        norm.backwardSum(dnormed, saved.norm, dresidual, dx, accumulation, scope);
    }

    private Tensor gradientOfNormed(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        Checks.like(scope, "dy", dy, saved.output.cell());
        Tensor dnormed = scope.like(saved.norm.output());
        try (Scope temporary = scope.open()) {
            Tensor dpre = temporary.like(saved.preActivation);
            gradientOfActivated(dy, saved, dpre, accumulation, temporary);
            fc1.parameterGradients(dpre, saved.norm.output(), accumulation, scope.stream());
            fc1.inputGradient(dpre, dnormed, temporary);
        }
        return dnormed;
    }

    /** Enqueues the gradients of fc2, and of the activation's input into {@code dpre}. */
    private void gradientOfActivated(Tensor dy, Saved saved, Tensor dpre, Accumulation accumulation, Scope scope) {
        Stream stream = scope.stream();
        Tensor preActivation = saved.preActivation;
        if (saved.activated != null) {
            fc2.parameterGradients(dy, saved.activated, accumulation, stream);
        } else {
            try (Scope temporary = scope.open()) {
                Tensor activated = temporary.like(preActivation);
                Elementwise.gelu(stream, preActivation.cell(), activated.cell());
                fc2.parameterGradients(dy, activated, accumulation, stream);
            }
        }
        if (dy.dtype() == DType.FLOAT32) {
            fc2.inputGradient(dy, dpre, scope);
            Elementwise.geluBackward(stream, dpre.cell(), preActivation.cell(), dpre.cell());
        } else {
            product(scope)
                    .inputGradientGelu(
                            stream, dy.cell(), fc2.weight().weight().cell(), preActivation.cell(), dpre.cell());
        }
    }

    private static MatrixProduct product(Scope scope) {
        return scope.device().state().calls().matrixProduct();
    }
}
