package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Elementwise;
import dev.chagres.internal.TensorCell;

/**
 * A norm over the rows of [T, H].
 *
 * <p>Threading: the device's thread.
 */
public abstract sealed class NormLayer permits LayerNorm, RmsNorm {
    /** For the two norms. */
    NormLayer() {}

    /**
     * What backward needs.
     *
     * @param layer whose forward this is of
     * @param input x
     * @param output y
     * @param mean of each row, FLOAT32 [T]; RMS norm has none and repeats {@code inverseDeviation}
     * @param inverseDeviation 1 over the (root mean square) deviation of each row, FLOAT32 [T]
     */
    public record Saved(NormLayer layer, Tensor input, Tensor output, Tensor mean, Tensor inverseDeviation) {}

    /** Makes the norm that {@code config} names, with its parameters in {@code plan}. */
    public static NormLayer of(NormConfig config, ParameterPlan plan) {
        return switch (config.kind()) {
            case LAYER_NORM -> new LayerNorm(config, plan);
            case RMS_NORM -> new RmsNorm(config, plan);
        };
    }

    /**
     * Enqueues the norm.
     *
     * @param x [T, H], in the type of the weights
     * @param scope receives y, like x
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public abstract Saved forward(Tensor x, Scope scope);

    /**
     * Enqueues the gradients: of the parameters into {@link Parameter#gradient()}, and of the input.
     *
     * @param dy gradient of the output, like it
     * @param scope receives the gradient of the input, like it
     * @throws IllegalArgumentException when shape, type or device do not fit
     */
    public abstract Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope);

    /** Returns the factor of each column. */
    public abstract Parameter weight();

    /** Checks that a record is of this layer and still holds what its forward left there. */
    void check(Saved saved, Scope scope) {
        weight().checkOwner(saved.layer.weight());
        long size = weight().shape().size(0);
        TensorCell input = Checks.matrix(
                scope, "saved.input", saved.input, weight().weight(scope).dtype(), size);
        Checks.like(scope, "saved.output", saved.output, input);
        Checks.vector(scope, "saved.mean", saved.mean, DType.FLOAT32, input.size(0));
        Checks.vector(scope, "saved.inverseDeviation", saved.inverseDeviation, DType.FLOAT32, input.size(0));
    }

    /** Enqueues {@code x = x + residual} in the place of {@code x}, and the norm of the sum, which is saved as input. */
    Saved forwardSum(Tensor x, Tensor residual, Scope scope) {
        Elementwise.add(scope.stream(), x.cell(), residual.cell(), x.cell());
        return forward(x, scope);
    }

    /**
     * Enqueues {@code dx = dresidual + } the gradient of the input, and the gradients of the parameters. {@code dx} may be
     * {@code dresidual}.
     */
    void backwardSum(Tensor dy, Saved saved, Tensor dresidual, Tensor dx, Accumulation accumulation, Scope scope) {
        try (Scope temporary = scope.open()) {
            Tensor through = backward(dy, saved, accumulation, temporary);
            Elementwise.add(scope.stream(), through.cell(), dresidual.cell(), dx.cell());
        }
    }
}
