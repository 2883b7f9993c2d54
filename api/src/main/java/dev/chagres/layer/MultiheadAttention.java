package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionConfig;
import dev.chagres.attention.DotProductAttention;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.SavedAttention;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.internal.TensorCell;
import org.jspecify.annotations.Nullable;

/**
 * Self-attention with its projections: {@code y = attention(rotate(norm(x) Wqkv^T + bqkv)) Wo^T + bo}.
 *
 * <p>Parameters: {@code qkv.norm}, {@code qkv.linear} [3 h d, H] with the rows of query, then key, then value, each by
 * head; {@code projection} [H, h d].
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Vaswani et al., Attention is all you need (2017); TE's {@code MultiheadAttention}.
 */
public final class MultiheadAttention {
    private final LayerNormLinear qkv;
    private final DotProductAttention attention;
    private final Linear projection;
    private @Nullable RotaryEmbedding rotary;

    /**
     * Declares the parameters in {@code plan}.
     *
     * @param norm of the input
     * @param config heads and what they see
     * @param initializer of both weights
     */
    public MultiheadAttention(NormConfig norm, AttentionConfig config, Initializer initializer, ParameterPlan plan) {
        long width = (long) config.heads() * config.headDim();
        qkv = new LayerNormLinear(norm, 3 * width, initializer, plan.child("qkv"));
        attention = new DotProductAttention(config);
        projection = new Linear(width, norm.size(), initializer, plan.child("projection"));
    }

    /**
     * Rotates query and key by their positions from now on.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public void rotate(RotaryEmbedding by) {
        if (by.headDim() != attention.config().headDim()) {
            throw new IllegalArgumentException(
                    "by: expected head dimension " + attention.config().headDim() + ", got " + by.headDim());
        }
        rotary = by;
    }

    /**
     * What backward needs.
     *
     * @param qkv of norm and first product; its output is rotated in place
     * @param attention of the heads
     * @param projection of the last product
     */
    public record Saved(LayerNormLinear.Saved qkv, SavedAttention attention, Linear.Saved projection) {
        /** Returns y. */
        public Tensor output() {
            return projection.output();
        }
    }

    /** Returns norm and product of query, key and value. */
    public LayerNormLinear qkv() {
        return qkv;
    }

    /** Returns the last product. */
    public Linear projection() {
        return projection;
    }

    /**
     * Enqueues self-attention.
     *
     * @param x [T, H], in the type of the weights
     * @param sequences which token belongs where
     * @param scope receives y, like x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, {@code x} has other tokens than the
     *     sequences say or none, or a sequence is longer than the positions of the rotary embedding
     */
    public Saved forward(Tensor x, Sequences sequences, Scope scope) {
        TensorCell input = Checks.on(scope, "x", x);
        sequences.checkTokens("x", x, input.rank() == 0 ? 1 : input.size(0));
        if (rotary != null) {
            rotary.checkSequences(sequences, scope);
        }
        LayerNormLinear.Saved projected = qkv.forward(x, scope);
        if (rotary != null) {
            rotary.rotatePacked(projected.output(), sequences, scope);
        }
        SavedAttention attended = attention.forwardPacked(projected.output(), sequences, scope);
        Linear.Saved output = projection.forward(attended.output(), scope);
        Saved saved = scope.recall(Saved.class);
        if (saved == null || saved.qkv != projected || saved.attention != attended || saved.projection != output) {
            saved = new Saved(projected, attended, output);
        }
        return scope.keep(saved);
    }

    /**
     * Enqueues the gradients: of the parameters, and of the input.
     *
     * @param dy gradient of the output, like it
     * @param scope receives the gradient of the input, like it
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor backward(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        check(saved, scope);
        return qkv.backward(gradientOfHeads(dy, saved, accumulation, scope), saved.qkv, accumulation, scope);
    }

    /** Checks that a record is of this layer and still holds what its forward left there. */
    void check(Saved saved, Scope scope) {
        qkv.check(saved.qkv, scope);
        attention.checkPacked(saved.attention);
        projection.check(saved.projection, scope);
    }

    /** Enqueues the same gradients, with {@code dx = dresidual + } that of the input; {@code dx} may be {@code dresidual}. */
    void backwardSum(Tensor dy, Saved saved, Tensor dresidual, Tensor dx, Accumulation accumulation, Scope scope) {
        Tensor dqkv = gradientOfHeads(dy, saved, accumulation, scope);
        qkv.backwardSum(dqkv, saved.qkv, dresidual, dx, accumulation, scope);
    }

    /** Enqueues projection and attention backwards: the gradient of query, key and value before the rotation. */
    private Tensor gradientOfHeads(Tensor dy, Saved saved, Accumulation accumulation, Scope scope) {
        Checks.like(scope, "dy", dy, saved.output().cell());
        Sequences sequences = saved.attention.sequences();
        Tensor dattended = projection.backward(dy, saved.projection, accumulation, scope);
        Tensor dqkv = scope.like(saved.qkv.output());
        attention.backwardPacked(dattended, saved.attention, dqkv, scope);
        if (rotary != null) {
            rotary.rotatePackedBack(dqkv, sequences, scope);
        }
        return dqkv;
    }
}
