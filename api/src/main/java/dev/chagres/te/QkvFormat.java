package dev.chagres.te;

import dev.chagres.bindings.te.TransformerEngine;

/**
 * The order of the token dimensions of a tensor of heads.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_QKV_Format} in TE's {@code fused_attn.h}.
 */
public enum QkvFormat {
    /** [S, B, h, d]: sequences padded to one length, position first. */
    SBHD(TransformerEngine.NVTE_SBHD(), "[S, B, h, d]"),
    /** [B, S, h, d]: sequences padded to one length, sequence first. */
    BSHD(TransformerEngine.NVTE_BSHD(), "[B, S, h, d]"),
    /** [T, h, d]: sequences one after another without padding. */
    THD(TransformerEngine.NVTE_THD(), "[T, h, d]");

    private final int code;
    private final String shape;

    QkvFormat(int code, String shape) {
        this.code = code;
        this.shape = shape;
    }

    /** Returns TE's number of this format. */
    public int code() {
        return code;
    }

    /** Returns the dimensions of a tensor of heads, by letters. */
    public String shape() {
        return shape;
    }

    /** Returns the number of dimensions of a tensor of heads. */
    public int rank() {
        return this == THD ? 3 : 4;
    }
}
