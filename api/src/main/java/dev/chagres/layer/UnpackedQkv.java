package dev.chagres.layer;

import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RingSequences;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.ops.QkvHeads;
import dev.chagres.ops.Rotary;
import dev.chagres.ops.TokenPositions;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * Self-attention over query, key and value that are copied out of the buffer of their product, each into a tensor of its own:
 * attention's kernels take one buffer of all three only with equal heads, and norms of heads need contiguous heads.
 *
 * <p>Threading: the device's thread.
 */
final class UnpackedQkv {
    private final DotProductAttention attention;
    private final AttentionConfig config;
    private final QkvHeads heads;
    private final QkTransform query;
    private final QkTransform key;
    private final KvAllGather gather;
    /** Null without ring attention. */
    private final @Nullable RingAttention ring;

    /** For copies without rotation. */
    private final TokenPositions nowhere = new TokenPositions();

    UnpackedQkv(
            DotProductAttention attention,
            AttentionConfig config,
            KvAllGather gather,
            @Nullable RingAttention ring,
            Layer owner,
            ModelPlan plan) {
        this.attention = attention;
        this.gather = gather;
        this.ring = ring;
        this.config = config;
        int headDim = config.headDim();
        heads = new QkvHeads(config.heads(), config.keyHeads(), headDim);
        QkNorm norm = config.qkNorm();
        query = new QkTransform(config.heads(), headDim, norm, owner, plan.child("q_norm"));
        key = new QkTransform(config.keyHeads(), headDim, norm, owner, plan.child("k_norm"));
    }

    /** Returns whether heads must be apart for {@code config}. */
    static boolean isFor(AttentionConfig config, KvAllGather gather, @Nullable RingAttention ring) {
        return config.keyHeads() != config.heads() || !config.qkNorm().isNone() || gather.isNeeded() || ring != null;
    }

    /** Returns whether a norm of the heads is trained. */
    boolean requiresGradient() {
        return query.requiresGradient() || key.requiresGradient();
    }

    /** Enqueues the copy, with rotation and norms if there are any, and attention; returns [T, h d]. */
    Tensor forward(
            Tensor qkv, @Nullable RotaryEmbedding rotary, Sequences sequences, @Nullable RingSequences cut, Pass pass) {
        Scope kept = pass.kept();
        Tensor q = tensor(kept, qkv, config.heads(), sequences);
        // Gathered keys are read only once, except by the norm's backward.
        Scope keysIn = gather.isNeeded() && config.qkNorm().isNone() ? pass.temporary() : kept;
        Tensor k = tensor(keysIn, qkv, config.keyHeads(), sequences);
        Tensor v = keysIn.like(k);
        RotaryEmbedding first = onTheWay(rotary);
        if (first == null) {
            Rotary.rotarySplit(qkv, heads, null, nowhere, q, k, v, pass.stream());
        } else {
            first.split(qkv, heads, sequences, q, k, v, pass.stream());
        }
        RotaryEmbedding second = first == null ? rotary : null;
        q = query.forward(q, second, sequences, pass);
        k = key.forward(k, second, sequences, pass);
        Tensor attended = attend(q, k, v, sequences, cut, pass);
        return kept.view(attended, 0, qkv.size(0), (long) config.heads() * config.headDim());
    }

    private Tensor attend(Tensor q, Tensor k, Tensor v, Sequences sequences, @Nullable RingSequences cut, Pass pass) {
        RingAttention passing = ring;
        if (passing != null) {
            return passing.forward(q, k, v, Checks.given("cut", cut), pass);
        }
        return gather.isNeeded()
                ? attention.forward(
                        q, gathered(k, sequences, pass), gathered(v, sequences, pass), gather.attended(sequences), pass)
                : attention.forwardSelf(q, k, v, pass);
    }

    private Tensor gathered(Tensor own, Sequences sequences, Pass pass) {
        Tensor all = gather.gather(own, sequences.keys().tokens(), pass.kept(), pass);
        return gather.attended(all, sequences, pass.kept());
    }

    /** Enqueues the gradients of {@link #forward}, which rotated by {@code rotary}, of the buffer. */
    void backward(Tensor dattended, Tensor dqkv, @Nullable RotaryEmbedding rotary, Sequences sequences, Pass pass) {
        Scope temporary = pass.temporary();
        Tensor dq = tensor(temporary, dqkv, config.heads(), sequences);
        Tensor dk = gather.isNeeded()
                ? temporary.tensor(dqkv.dtype(), sequences.keys().tokens(), config.keyHeads(), config.headDim())
                : tensor(temporary, dqkv, config.keyHeads(), sequences);
        Tensor dv = temporary.like(dk);
        if (gather.isNeeded()) { // Kernels need not write keys of sequences that have no query here.
            dk.zero(pass.stream());
            dv.zero(pass.stream());
        }
        Tensor dO = AttentionInputs.shaped(temporary, dattended, 0, config.heads(), config.headDim(), sequences);
        RingAttention passing = ring;
        if (passing == null) {
            attention.backward(dO, dq, attended(dk, sequences, pass), attended(dv, sequences, pass), pass);
        } else {
            passing.backward(dO, dq, dk, dv, pass);
        }
        if (gather.isNeeded()) {
            dk = gather.sum(dk, temporary, pass);
            dv = gather.sum(dv, temporary, pass);
        }
        RotaryEmbedding last = onTheWay(rotary);
        RotaryEmbedding second = last == null ? rotary : null;
        dk = key.backward(dk, second, sequences, pass);
        dq = query.backward(dq, second, sequences, pass);
        if (last == null) {
            Rotary.rotaryJoin(dq, dk, dv, heads, null, nowhere, dqkv, pass.stream());
        } else {
            last.join(dq, dk, dv, heads, sequences, dqkv, pass.stream());
        }
    }

    private Tensor attended(Tensor gradient, Sequences sequences, Pass pass) {
        return gather.attended(gradient, sequences, pass.temporary());
    }

    /** Frees what the latest {@link #forward} saved, if no backward call follows. */
    void discard(Pass pass) {
        RingAttention passing = ring;
        if (passing == null) {
            attention.discard(pass);
        } else {
            passing.discard(pass);
        }
        key.discard(pass);
        query.discard(pass);
    }

    /** Returns the rotation that the copy does, or null. */
    private @Nullable RotaryEmbedding onTheWay(@Nullable RotaryEmbedding rotary) {
        return query.rotatesLast ? null : rotary;
    }

    private Tensor tensor(Scope scope, Tensor like, int count, Sequences sequences) {
        int headDim = config.headDim();
        return switch (sequences.format()) {
            case THD -> scope.tensor(like.dtype(), like.size(0), count, headDim);
            case BSHD -> scope.tensor(like.dtype(), sequences.batch(), sequences.length(), count, headDim);
            case SBHD -> scope.tensor(like.dtype(), sequences.length(), sequences.batch(), count, headDim);
        };
    }

    /** Returns which kernels move the heads, and why they do. */
    String explain(@Nullable RotaryEmbedding rotary) {
        QkNorm norm = config.qkNorm();
        String copies = (onTheWay(rotary) == null ? "heads" : "heads, rotated on the way,")
                + " copied apart by ops_rotary_split and back by ops_rotary_join, for "
                + (gather.isNeeded() || ring != null
                        ? "keys and values " + (ring == null ? "are gathered" : "travel round ranks")
                        : norm.isNone()
                                ? "one buffer needs equal heads, not " + config.heads() + " and " + config.keyHeads()
                                : "norms of heads need contiguous heads");
        String sides = query.explain(onTheWay(rotary) == null ? rotary : null);
        return (sides.isEmpty() ? copies : copies + "; " + sides)
                + gather.explain()
                + (ring == null ? "" : "; " + ring.explain());
    }
}
