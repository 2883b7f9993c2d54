package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.QkNorm.Place;
import dev.chagres.model.ModelPlan;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary;
import dev.chagres.ops.Rotary.Direction;
import dev.chagres.ops.TokenPositions;
import org.jspecify.annotations.Nullable;

/**
 * Self-attention over query, key and value that are copied out of the buffer of their product, each into a tensor of its own:
 * attention's kernels take one buffer of all three for equal heads alone, and norms of heads want them side by side.
 *
 * <p>Threading: the device's thread.
 */
final class SeparateHeads {
    private final DotProductAttention attention;
    private final AttentionConfig config;
    private final QkvHeads heads;
    private final QkvHeads queries;
    private final QkvHeads keys;
    /** Null without norms of heads. */
    private final @Nullable HeadNorm queryNorm;

    private final @Nullable HeadNorm keyNorm;
    /** For copies that rotate nothing. */
    private final TokenPositions nowhere = new TokenPositions();

    SeparateHeads(DotProductAttention attention, AttentionConfig config, Layer owner, ModelPlan plan) {
        this.attention = attention;
        this.config = config;
        int headDim = config.headDim();
        heads = new QkvHeads(config.heads(), config.keyHeads(), headDim);
        queries = new QkvHeads(config.heads(), 0, headDim);
        keys = new QkvHeads(config.keyHeads(), 0, headDim);
        QkNorm norm = config.qkNorm();
        queryNorm = norm.isNone() ? null : new HeadNorm(norm, headDim, owner, plan.child("q_norm"));
        keyNorm = norm.isNone() ? null : new HeadNorm(norm, headDim, owner, plan.child("k_norm"));
    }

    /** Returns whether heads must be apart for {@code config}. */
    static boolean isFor(AttentionConfig config) {
        return config.keyHeads() != config.heads() || !config.qkNorm().isNone();
    }

    /** Returns whether a norm of the heads is trained. */
    boolean requiresGradient() {
        return queryNorm != null && keyNorm != null && (queryNorm.requiresGradient() || keyNorm.requiresGradient());
    }

    /** Enqueues the copy, with rotation and norms where there are such, and attention; returns [T, h d]. */
    Tensor forward(Tensor qkv, @Nullable RotaryEmbedding rotary, Sequences sequences, Pass pass) {
        Scope kept = pass.kept();
        Tensor q = tensor(kept, qkv, config.heads(), sequences);
        Tensor k = tensor(kept, qkv, config.keyHeads(), sequences);
        Tensor v = kept.like(k);
        RotaryEmbedding first = onTheWay(rotary);
        if (first == null) {
            Rotary.rotarySplit(qkv, heads, null, nowhere, q, k, v, pass.stream());
        } else {
            first.split(qkv, heads, sequences, q, k, v, pass.stream());
        }
        if (queryNorm != null && keyNorm != null) {
            Tensor normedQ = kept.like(q);
            Tensor normedK = kept.like(k);
            queryNorm.run(q, normedQ, pass);
            keyNorm.run(k, normedK, pass);
            q = normedQ;
            k = normedK;
            rotateAfterwards(rotary, q, k, sequences, Direction.FORWARD, pass);
        }
        Tensor attended = attention.forwardSelf(q, k, v, pass);
        return kept.view(attended, 0, qkv.size(0), (long) config.heads() * config.headDim());
    }

    /** Enqueues the gradients of {@link #forward}, which rotated by {@code rotary}, of the buffer. */
    void backward(Tensor dattended, Tensor dqkv, @Nullable RotaryEmbedding rotary, Sequences sequences, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor dq = tensor(temporary, dqkv, config.heads(), sequences);
        Tensor dk = tensor(temporary, dqkv, config.keyHeads(), sequences);
        Tensor dv = temporary.like(dk);
        attention.backward(shaped(temporary, dattended, config.heads(), sequences), dq, dk, dv, pass);
        if (queryNorm != null && keyNorm != null) {
            rotateAfterwards(rotary, dq, dk, sequences, Direction.BACKWARD, pass);
            Tensor before = temporary.like(dk);
            keyNorm.gradient(dk, before, pass);
            dk = before;
            before = temporary.like(dq);
            queryNorm.gradient(dq, before, pass);
            dq = before;
        }
        RotaryEmbedding last = onTheWay(rotary);
        if (last == null) {
            Rotary.rotaryJoin(dq, dk, dv, heads, null, nowhere, dqkv, pass.stream());
        } else {
            last.join(dq, dk, dv, heads, sequences, dqkv, pass.stream());
        }
    }

    /** Gives back what the latest {@link #forward} saved, where nobody wants its gradients. */
    void discard(Pass pass) {
        attention.discard(pass);
        if (queryNorm != null && keyNorm != null) {
            keyNorm.discard(pass);
            queryNorm.discard(pass);
        }
    }

    /** Returns the rotation that the copy does, or null. */
    private @Nullable RotaryEmbedding onTheWay(@Nullable RotaryEmbedding rotary) {
        return queryNorm != null && config.qkNorm().place() == Place.BEFORE_ROTATION ? null : rotary;
    }

    /** Enqueues the rotation behind the norms, in place, where it stands there. */
    private void rotateAfterwards(
            @Nullable RotaryEmbedding rotary, Tensor q, Tensor k, Sequences sequences, Direction direction, Pass pass) {
        if (rotary != null && config.qkNorm().place() == Place.BEFORE_ROTATION) {
            Scope scope = pass.kept();
            long tokens = sequences.tokens();
            rotary.rotatePacked(
                    scope.view(q, 0, tokens, queries.columns()), queries, sequences, direction, pass.stream());
            rotary.rotatePacked(scope.view(k, 0, tokens, keys.columns()), keys, sequences, direction, pass.stream());
        }
    }

    private Tensor tensor(Scope scope, Tensor like, int count, Sequences sequences) {
        int headDim = config.headDim();
        return switch (sequences.format()) {
            case THD -> scope.tensor(like.dtype(), like.size(0), count, headDim);
            case BSHD -> scope.tensor(like.dtype(), sequences.batch(), sequences.length(), count, headDim);
            case SBHD -> scope.tensor(like.dtype(), sequences.length(), sequences.batch(), count, headDim);
        };
    }

    private Tensor shaped(Scope scope, Tensor matrix, int count, Sequences sequences) {
        int headDim = config.headDim();
        return switch (sequences.format()) {
            case THD -> scope.view(matrix, 0, matrix.size(0), count, headDim);
            case BSHD -> scope.view(matrix, 0, sequences.batch(), sequences.length(), count, headDim);
            case SBHD -> scope.view(matrix, 0, sequences.length(), sequences.batch(), count, headDim);
        };
    }

    /** Returns which kernels move the heads, and why they do. */
    String explain(@Nullable RotaryEmbedding rotary) {
        QkNorm norm = config.qkNorm();
        String copies = (onTheWay(rotary) == null ? "heads" : "heads, rotated on the way,")
                + " copied apart by ops_rotary_split and back by ops_rotary_join, for "
                + (norm.isNone()
                        ? "one buffer takes equal heads alone, not " + config.heads() + " and " + config.keyHeads()
                        : "norms of heads want them side by side");
        String kernels = norm.kind() == QkNorm.Kind.LAYER_NORM
                ? "te_layernorm_fwd and te_layernorm_bwd"
                : "te_rmsnorm_fwd and te_rmsnorm_bwd";
        return norm.isNone()
                ? copies
                : copies + "; norms of query and key by " + kernels
                        + (rotary != null && norm.place() == Place.BEFORE_ROTATION
                                ? ", then rotation in place by ops_rotary_packed"
                                : "");
    }
}
