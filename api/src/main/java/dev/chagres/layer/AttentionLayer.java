package dev.chagres.layer;

import dev.chagres.attention.Alibi;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.Checks;
import dev.chagres.pass.Layer;
import dev.chagres.pass.SharedInput;
import org.jspecify.annotations.Nullable;

/**
 * Attention with its norm and projections: what self-attention and cross-attention have in common.
 *
 * <p>Threading: the device's thread.
 */
abstract sealed class AttentionLayer extends NormedBranch permits CrossAttention, MultiheadAttention {
    private final HeadsBranch heads;

    /** {@code reader}: the product that reads the norm's output. */
    AttentionLayer(String name, @Nullable NormLayer norm, HeadsBranch heads, Linear reader) {
        super(name, norm, heads, reader, heads.projection());
        this.heads = heads;
    }

    /**
     * Rotates queries and keys by their positions in forward calls from now on; backward undoes the rotation of its own forward. In TE, a
     * decoder layer applies the rotation of its self-attention in its cross-attention, too.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public final void rotate(RotaryEmbedding rotary) {
        int headDim = heads.config().headDim();
        if (Checks.given("rotary", rotary).headDim() != headDim) {
            throw new IllegalArgumentException(
                    "rotary: expected head dimension " + headDim + ", got " + rotary.headDim());
        }
        heads.rotary = rotary;
    }

    /**
     * Adds linear biases to the scores of forward calls from now on.
     *
     * @throws IllegalArgumentException when it has slopes of another number of heads than all ranks have together
     */
    public final void alibi(Alibi alibi) {
        heads.attention().alibi(alibi);
    }

    /**
     * Adds a bias to the scores of forward calls from now on: the tensor that {@code biases} was given in the same pass, with the shape
     * that {@link DotProductAttention#bias} says.
     */
    public final void bias(SharedInput biases) {
        heads.attention().bias(biases);
    }

    /**
     * Adds a bias to the scores of forward calls from now on as {@link #bias} does, but before the scale, {@code s = scale (q_i . k_j +
     * bias)}: TE's {@code pre_scale_bias}. It replaces a bias that was set before.
     *
     * @throws IllegalArgumentException where heads have an L2 norm, or context-parallel ranks attend with their own queries alone
     */
    public final void preScaleBias(SharedInput biases) {
        HeadNorm.ensureTakesPreScaleBias(heads.config());
        heads.attention().preScaleBias(biases);
    }

    /** Attention after the norm, and the projection of its output. */
    abstract static class HeadsBranch extends Layer {
        private @Nullable RotaryEmbedding rotary;

        HeadsBranch(String name) {
            super(name);
        }

        /** Returns the configuration of this rank's heads. */
        abstract AttentionConfig config();

        /** Returns what is computed over the heads. */
        abstract DotProductAttention attention();

        abstract Linear projection();

        /** Returns the rotation of forward calls, or null. */
        final @Nullable RotaryEmbedding rotary() {
            return rotary;
        }

        @Override
        public final long outputColumns(long inputColumns) {
            return projection().outputColumns(inputColumns);
        }
    }
}
