package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;
import org.jspecify.annotations.Nullable;

/**
 * {@code h = x + dropout(attention(norm(x)))}, {@code y = h + dropout(mlp(norm(h)))}: a pre-norm encoder layer.
 *
 * <p>Parameters: {@code attention} as {@link MultiheadAttention}, {@code mlp} as {@link LayerNormMlp}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: TE's {@code TransformerLayer} with {@code layer_type="encoder"}.
 */
public final class TransformerLayer {
    private final MultiheadAttention attention;
    private final LayerNormMlp mlp;
    private final Residual residual;

    /** Declares the parameters in {@code plan}. */
    public TransformerLayer(TransformerLayerConfig config, ParameterPlan plan) {
        attention = new MultiheadAttention(
                config.norm(), config.attention(), config.initializer(), plan.child("attention"));
        mlp = new LayerNormMlp(config.feedForward(), plan.child("mlp"));
        residual = new Residual(config.hiddenDropout());
    }

    /**
     * What backward needs.
     *
     * @param attention of the first half
     * @param middle of the sum after it; null without dropout, when the second half computes it
     * @param mlp of the second half
     * @param last of the sum after that
     */
    public record Saved(
            MultiheadAttention.Saved attention,
            Residual.@Nullable Saved middle,
            LayerNormMlp.Saved mlp,
            Residual.Saved last) {
        /** Returns y. */
        public Tensor output() {
            return last.output();
        }
    }

    /** Returns the first half. */
    public MultiheadAttention attention() {
        return attention;
    }

    /** Returns the second half. */
    public LayerNormMlp mlp() {
        return mlp;
    }

    /**
     * Rotates query and key by their positions from now on.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public void rotate(RotaryEmbedding by) {
        attention.rotate(by);
    }

    /**
     * Enqueues the layer.
     *
     * @param x [T, H], in the type of the weights
     * @param sequences which token belongs where
     * @param scope receives y, like x, and what backward needs
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Saved forward(Tensor x, Sequences sequences, Scope scope) {
        MultiheadAttention.Saved attended = attention.forward(x, sequences, scope);
        Residual.Saved middle = null;
        LayerNormMlp.Saved fed;
        if (residual.isPlain()) {
            fed = mlp.forwardSum(attended.output(), x, scope);
        } else {
            middle = residual.forwardInPlace(attended.output(), x, scope);
            fed = mlp.forward(middle.output(), scope);
        }
        Residual.Saved last = residual.forwardInPlace(fed.output(), fed.norm().input(), scope);
        Saved saved = scope.recall(Saved.class);
        if (saved == null
                || saved.attention != attended
                || saved.middle != middle
                || saved.mlp != fed
                || saved.last != last) {
            saved = new Saved(attended, middle, fed, last);
        }
        return scope.keep(saved);
    }

    /**
     * Enqueues the gradients: of the parameters into {@link Parameter#gradient()}, and of the input.
     *
     * @param dy gradient of the output, like it
     * @param scope receives the gradient of the input, like it
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        Checks.like(scope, "dy", dy, saved.output().cell());
        Tensor dx = scope.like(dy);
        backward(dy, dx, saved, accumulation, scope);
        return dx;
    }

    /**
     * Enqueues the same gradients as {@link #backward}, but that of the input takes the place of that of the output: a
     * stack of layers then needs one such buffer, whatever its height.
     *
     * @param dy gradient of the output, like it; becomes the gradient of the input
     * @param scope lends memory while this runs
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public void backwardInPlace(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        TensorCell gradient = Checks.like(scope, "dy", dy, saved.output().cell());
        Checks.apart(
                "dy",
                gradient,
                "the input",
                saved.attention.qkv().norm().input().cell());
        Checks.apart(
                "dy",
                gradient,
                "the attention's output",
                saved.mlp.norm().input().cell());
        backward(dy, dy, saved, accumulation, scope);
    }

    /** Checks that a record is of this layer and still holds what its forward left there, before anything is changed. */
    private void check(Saved saved, Scope scope) {
        attention.check(saved.attention, scope);
        TensorCell input = saved.attention.qkv().norm().input().cell();
        Residual.Saved middle = saved.middle;
        if ((middle == null) != residual.isPlain()) {
            throw new IllegalArgumentException("saved.middle: expected "
                    + (residual.isPlain() ? "none without dropout" : "the sum in the middle") + ", got " + middle);
        }
        if (middle != null) {
            residual.check(middle, scope);
            Checks.like(scope, "saved.middle.output", middle.output(), input);
        }
        mlp.check(saved.mlp, scope);
        residual.check(saved.last, scope);
        Checks.like(scope, "saved.last.output", saved.last.output(), input);
    }

    /** {@code dx} may be {@code dy}. It first takes the gradient of the sum in the middle, then that of the input. */
    private void backward(Tensor dy, Tensor dx, Saved saved, Accumulation accumulation, Scope scope) {
        try (Scope temporary = scope.open()) {
            Tensor dfed = residual.backward(dy, saved.last, temporary);
            mlp.backwardSum(dfed, saved.mlp, dy, dx, accumulation, temporary);
        }
        try (Scope temporary = scope.open()) {
            Tensor dattended = saved.middle == null ? dx : residual.backward(dx, saved.middle, temporary);
            attention.backwardSum(dattended, saved.attention, dx, dx, accumulation, temporary);
        }
    }
}
