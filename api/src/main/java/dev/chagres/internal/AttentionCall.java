package dev.chagres.internal;

import org.jspecify.annotations.Nullable;

/**
 * The tensors of one attention call: kept from forward for backward, and filled again by the next repetition.
 *
 * <p>Threading: the device's thread.
 */
public final class AttentionCall {
    /** Whether token offsets come from the cumulative lengths or from the shape. */
    public enum Packing {
        /** Sequences follow one another without padding. */
        PACKED,
        /** Every sequence has the same padded length. */
        DENSE
    }

    /** Query. */
    public final TensorCell q;

    /** Key. */
    public final TensorCell k;

    /** Value. */
    public final TensorCell v;

    /** Output. */
    public final TensorCell o;

    private @Nullable TensorCell cuSeqlens;
    private Packing packing = Packing.DENSE;
    private long longest;
    private @Nullable TensorCell rngState;

    /** Names the tensors that every repetition hands out again. */
    public AttentionCall(TensorCell q, TensorCell k, TensorCell v, TensorCell o) {
        this.q = q;
        this.k = k;
        this.v = v;
        this.o = o;
    }

    /**
     * Describes the sequences of this repetition.
     *
     * @param lengths INT32 [B + 1], cumulative valid lengths
     * @param how whether {@code lengths} are token offsets too
     * @param upTo upper bound of the sequence lengths; the padded length of a dense layout
     * @param rng INT64 [2], Philox seed and offset; null without dropout
     */
    public void over(TensorCell lengths, Packing how, long upTo, @Nullable TensorCell rng) {
        cuSeqlens = lengths;
        packing = how;
        longest = upTo;
        rngState = rng;
    }

    /** Returns whether the call is over these tensors. */
    public boolean isOf(TensorCell query, TensorCell key, TensorCell value, TensorCell output) {
        return q == query && k == key && v == value && o == output;
    }

    /** Returns how often all tensors of the call were handed out. */
    public long issues() {
        TensorCell rng = rngState;
        return (long) q.issue()
                + k.issue()
                + v.issue()
                + o.issue()
                + cuSeqlens().issue()
                + (rng == null ? 0 : rng.issue());
    }

    TensorCell cuSeqlens() {
        TensorCell lengths = cuSeqlens;
        if (lengths == null) {
            throw new IllegalStateException("attention was not given its sequences");
        }
        return lengths;
    }

    Packing packing() {
        return packing;
    }

    long longest() {
        return longest;
    }

    @Nullable
    TensorCell rngState() {
        return rngState;
    }
}
