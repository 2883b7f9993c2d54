package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary;
import dev.chagres.ops.TokenPositions;
import org.jspecify.annotations.Nullable;

/**
 * Self-attention over query, key and value that are copied out of the buffer of their product, each into a tensor of its own:
 * attention's kernels take one buffer of all three for equal heads alone.
 *
 * <p>Threading: the device's thread.
 */
final class SeparateHeads {
    private final DotProductAttention attention;
    private final AttentionConfig config;
    private final QkvHeads heads;
    /** For copies that rotate nothing. */
    private final TokenPositions nowhere = new TokenPositions();

    SeparateHeads(DotProductAttention attention) {
        this.attention = attention;
        config = attention.config();
        heads = new QkvHeads(config.heads(), config.keyHeads(), config.headDim());
    }

    /** Enqueues the copy, with the rotation unless it is null, and attention; returns [T, h d]. */
    Tensor forward(Tensor qkv, @Nullable RotaryEmbedding rotary, Sequences sequences, Pass pass) {
        Scope kept = pass.kept();
        Tensor q = tensor(kept, qkv, config.heads(), sequences);
        Tensor k = tensor(kept, qkv, config.keyHeads(), sequences);
        Tensor v = kept.like(k);
        if (rotary == null) {
            Rotary.rotarySplit(qkv, heads, null, nowhere, q, k, v, pass.stream());
        } else {
            rotary.split(qkv, heads, sequences, q, k, v, pass.stream());
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
        if (rotary == null) {
            Rotary.rotaryJoin(dq, dk, dv, heads, null, nowhere, dqkv, pass.stream());
        } else {
            rotary.join(dq, dk, dv, heads, sequences, dqkv, pass.stream());
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

    /** Returns which kernels move the heads. */
    String explain(@Nullable RotaryEmbedding rotary) {
        return (rotary == null ? "heads" : "heads, rotated on the way,")
                + " copied apart by ops_rotary_split and back by ops_rotary_join, for one buffer takes equal heads alone,"
                + " not " + config.heads() + " and " + config.keyHeads();
    }
}
