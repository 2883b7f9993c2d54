package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.QkNorm.Place;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary.Direction;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * What happens to the heads of query or key between product and attention: norm and rotation, in the order that {@link QkNorm#place} says.
 *
 * <p>Threading: the device's thread.
 */
final class QkTransform {
    private final QkvHeads heads;
    /** Whether the rotation comes after a norm. */
    final boolean rotatesLast;
    /** Null without a norm. */
    private final @Nullable HeadNorm norm;

    /**
     * Declares the parameters of the norm.
     *
     * @param count of heads
     * @param plan that the norm's parameters stand in
     */
    QkTransform(int count, int headDim, QkNorm norm, Layer owner, ModelPlan plan) {
        heads = new QkvHeads(count, 0, headDim);
        rotatesLast = !norm.isNone() && norm.place() == Place.BEFORE_ROTATION;
        this.norm = norm.isNone() ? null : new HeadNorm(norm, headDim, owner, plan);
    }

    /** Returns whether a norm of the heads is trained. */
    boolean requiresGradient() {
        return norm != null && norm.requiresGradient();
    }

    /**
     * Enqueues norm and rotation. A rotation that comes first overwrites {@code x}.
     *
     * @param x [T, heads, d], or by sequences
     * @return what attention reads, like x
     */
    Tensor forward(Tensor x, @Nullable RotaryEmbedding rotary, Sequences sequences, Pass pass) {
        if (!rotatesLast) {
            rotate(x, rotary, sequences, Direction.FORWARD, pass);
        }
        if (norm == null) {
            return x;
        }
        Tensor normed = pass.kept().like(x);
        norm.run(x, normed, pass);
        if (rotatesLast) {
            rotate(normed, rotary, sequences, Direction.FORWARD, pass);
        }
        return normed;
    }

    /** Enqueues the gradient of the latest {@link #forward}; {@code dx} may be {@code dy}. */
    Tensor backward(Tensor dy, @Nullable RotaryEmbedding rotary, Sequences sequences, Pass pass) {
        if (rotatesLast) {
            rotate(dy, rotary, sequences, Direction.BACKWARD, pass);
        }
        Tensor dx = dy;
        if (norm != null) {
            dx = pass.temporary().like(dy);
            norm.gradient(dy, dx, pass);
        }
        if (!rotatesLast) {
            rotate(dx, rotary, sequences, Direction.BACKWARD, pass);
        }
        return dx;
    }

    /** Frees what the latest {@link #forward} saved, if no backward call follows. */
    void discard(Pass pass) {
        if (norm != null) {
            norm.discard(pass);
        }
    }

    /** Returns which kernels run here and on the other side, or nothing. */
    String explain(@Nullable RotaryEmbedding rotary) {
        String rotation = rotary == null ? "" : "rotation in place by ops_rotary_packed";
        if (norm == null) {
            return rotation;
        }
        String norms = "norms of query and key by " + norm.kernels();
        if (rotary == null) {
            return norms;
        }
        return rotatesLast ? norms + ", then " + rotation : rotation + ", then " + norms;
    }

    private void rotate(
            Tensor x, @Nullable RotaryEmbedding rotary, Sequences sequences, Direction direction, Pass pass) {
        if (rotary != null) {
            Scope scope = pass.kept();
            rotary.rotatePacked(
                    scope.view(x, 0, sequences.tokens(), heads.columns()), heads, sequences, direction, pass.stream());
        }
    }
}
