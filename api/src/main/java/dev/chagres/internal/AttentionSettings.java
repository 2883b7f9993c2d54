package dev.chagres.internal;

import dev.chagres.bindings.te.TransformerEngine;

/**
 * What stays the same from call to call of one attention module, in TE's numbers.
 *
 * <p>Threading: immutable.
 *
 * @param layout {@code NVTE_QKV_Layout}
 * @param format {@code NVTE_QKV_Format} of output and its gradient
 * @param mask {@code NVTE_Mask_Type}
 * @param windowLeft keys before a query that it sees, -1 all
 * @param windowRight keys after a query that it sees, -1 all
 * @param scale factor on query times key
 * @param dropout probability of dropping an attention weight
 */
public record AttentionSettings(
        int layout, int format, int mask, long windowLeft, long windowRight, float scale, float dropout) {
    /** Returns whether query, key and value of a token lie side by side. */
    boolean isOneBuffer() {
        return layout == TransformerEngine.NVTE_SB3HD()
                || layout == TransformerEngine.NVTE_BS3HD()
                || layout == TransformerEngine.NVTE_T3HD();
    }

    /** Returns whether no query sees a later key: queries and keys being the same tokens, both diagonals are one. */
    boolean isCausal() {
        return mask != TransformerEngine.NVTE_NO_MASK() && mask != TransformerEngine.NVTE_PADDING_MASK();
    }
}
