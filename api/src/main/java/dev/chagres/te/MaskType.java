package dev.chagres.te;

import dev.chagres.bindings.te.TransformerEngine;

/**
 * Which keys a query sees, apart from a window.
 *
 * <p>The diagonal pairs queries with keys: query i with key i (top left) or the last query of a sequence with its last key (bottom right).
 * A causal mask hides the keys behind the diagonal; a window is counted from it.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_Mask_Type} in TE's {@code fused_attn.h}.
 */
public enum MaskType {
    /** All keys; all sequences have the padded length. The diagonal ends at the bottom right. */
    NO_MASK(TransformerEngine.NVTE_NO_MASK()),
    /** The keys of its own sequence. The diagonal ends at the bottom right. */
    PADDING(TransformerEngine.NVTE_PADDING_MASK()),
    /** Keys up to the diagonal, which begins at the top left; all sequences have the padded length. */
    CAUSAL(TransformerEngine.NVTE_CAUSAL_MASK()),
    /** Keys of its own sequence up to the diagonal, which begins at the top left. */
    PADDING_CAUSAL(TransformerEngine.NVTE_PADDING_CAUSAL_MASK()),
    /** Keys up to the diagonal, which ends at the bottom right; all sequences have the padded length. */
    CAUSAL_BOTTOM_RIGHT(TransformerEngine.NVTE_CAUSAL_BOTTOM_RIGHT_MASK()),
    /** Keys of its own sequence up to the diagonal, which ends at the bottom right. */
    PADDING_CAUSAL_BOTTOM_RIGHT(TransformerEngine.NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK());

    private final int code;

    MaskType(int code) {
        this.code = code;
    }

    /** Returns TE's number of this mask. */
    public int code() {
        return code;
    }

    /** Returns whether no query sees a key behind its diagonal. */
    public boolean isCausal() {
        return this != NO_MASK && this != PADDING;
    }

    /** Returns whether sequences may be shorter than the padded length, or are packed. */
    public boolean isPadding() {
        return this == PADDING || this == PADDING_CAUSAL || this == PADDING_CAUSAL_BOTTOM_RIGHT;
    }

    /** Returns whether the diagonal ends at the bottom right, rather than begins at the top left. */
    public boolean isBottomRight() {
        return this != CAUSAL && this != PADDING_CAUSAL;
    }
}
