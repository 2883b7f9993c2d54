package dev.chagres.attention;

import dev.chagres.internal.Checks;
import dev.chagres.te.MaskType;

/**
 * Which keys a query sees, apart from padding, which {@link Sequences} define: query i of S sees key j of S' where
 *
 * <pre>{@code i + d - windowLeft <= j <= i + d + windowRight}</pre>
 *
 * <p>without a bound where the side is -1. The diagonal {@code d} is 0 for {@link Kind#CAUSAL}, and {@code S' - S} for {@link
 * Kind#CAUSAL_BOTTOM_RIGHT} and {@link Kind#NONE}: a window without a causal mask ends at the bottom right: the last query stands on
 * the last key. S and S' are the lengths of the one sequence, without padding; only in cross-attention do they differ. Attention in eight
 * bits has {@code d = 0} for {@link Kind#NONE}, too.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_Mask_Type} and the window arguments in TE's {@code fused_attn.h}.
 *
 * @param kind whether the mask is causal
 * @param windowLeft number of keys before the diagonal that a query sees, -1 for all
 * @param windowRight number of keys after the diagonal that a query sees, -1 for all
 */
public record AttentionMask(Kind kind, long windowLeft, long windowRight) {
    /** Causal form of a mask. */
    public enum Kind {
        /** Every query sees every key of its sequence. */
        NONE,
        /** Query i sees keys 0 to i. */
        CAUSAL,
        /** Causal, aligned so that the last query sees the last key: for more keys than queries. */
        CAUSAL_BOTTOM_RIGHT
    }

    /**
     * Checks the window.
     *
     * @throws IllegalArgumentException when a side is below -1, or a causal mask has a window to the right
     */
    public AttentionMask {
        Checks.given("kind", kind);
        if (windowLeft < -1 || windowRight < -1) {
            throw new IllegalArgumentException(
                    "window: expected -1 (unbounded) or more on each side, got " + windowLeft + " and " + windowRight);
        }
        if (kind != Kind.NONE && windowRight > 0) {
            throw new IllegalArgumentException(
                    "windowRight: a causal mask sees no later key, expected 0, got " + windowRight);
        }
    }

    /** Every query sees every key of its sequence. */
    public static AttentionMask none() {
        return new AttentionMask(Kind.NONE, -1, -1);
    }

    /** Query i sees keys 0 to i. */
    public static AttentionMask causal() {
        return new AttentionMask(Kind.CAUSAL, -1, 0);
    }

    /** The last query sees the last key, the one before it all but the last, and so on. */
    public static AttentionMask causalBottomRight() {
        return new AttentionMask(Kind.CAUSAL_BOTTOM_RIGHT, -1, 0);
    }

    /** Returns this mask with a sliding window of {@code left} keys before and {@code right} keys after the diagonal. */
    public AttentionMask withWindow(long left, long right) {
        return new AttentionMask(kind, left, right);
    }

    /** Returns TE's type of this mask, for sequences that are padded or packed, or for sequences that all have the full length. */
    public MaskType type(Sequences.Padding padding) {
        boolean full = padding == Sequences.Padding.NONE;
        return switch (kind) {
            case NONE -> full ? MaskType.NO_MASK : MaskType.PADDING;
            case CAUSAL -> full ? MaskType.CAUSAL : MaskType.PADDING_CAUSAL;
            case CAUSAL_BOTTOM_RIGHT -> full ? MaskType.CAUSAL_BOTTOM_RIGHT : MaskType.PADDING_CAUSAL_BOTTOM_RIGHT;
        };
    }
}
