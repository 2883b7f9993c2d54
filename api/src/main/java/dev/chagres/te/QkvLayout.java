package dev.chagres.te;

import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;

/**
 * How query, key and value lie in memory.
 *
 * <p>In a shared buffer each of them is a view that begins at its first element and has the shape it would have alone; the layout implies
 * the stride between tokens.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_QKV_Layout} in TE's {@code fused_attn.h}.
 */
public enum QkvLayout {
    /** One buffer [S, B, 3, h, d]. */
    SB3HD(TransformerEngine.NVTE_SB3HD(), QkvFormat.SBHD, Packing.ALL),
    /** Query [S, B, h, d]; one buffer of key and value [S, B, 2, h, d]. */
    SBHD_SB2HD(TransformerEngine.NVTE_SBHD_SB2HD(), QkvFormat.SBHD, Packing.KEY_VALUE),
    /** Three buffers [S, B, h, d]. */
    SBHD_SBHD_SBHD(TransformerEngine.NVTE_SBHD_SBHD_SBHD(), QkvFormat.SBHD, Packing.NONE),
    /** One buffer [B, S, 3, h, d]. */
    BS3HD(TransformerEngine.NVTE_BS3HD(), QkvFormat.BSHD, Packing.ALL),
    /** Query [B, S, h, d]; one buffer of key and value [B, S, 2, h, d]. */
    BSHD_BS2HD(TransformerEngine.NVTE_BSHD_BS2HD(), QkvFormat.BSHD, Packing.KEY_VALUE),
    /** Three buffers [B, S, h, d]. */
    BSHD_BSHD_BSHD(TransformerEngine.NVTE_BSHD_BSHD_BSHD(), QkvFormat.BSHD, Packing.NONE),
    /** One buffer [T, 3, h, d]. */
    T3HD(TransformerEngine.NVTE_T3HD(), QkvFormat.THD, Packing.ALL),
    /** Query [T, h, d]; one buffer of key and value [T, 2, h, d]. */
    THD_T2HD(TransformerEngine.NVTE_THD_T2HD(), QkvFormat.THD, Packing.KEY_VALUE),
    /** Three buffers [T, h, d]. */
    THD_THD_THD(TransformerEngine.NVTE_THD_THD_THD(), QkvFormat.THD, Packing.NONE);

    /** Which of query, key and value share a buffer. */
    public enum Packing {
        /** None. */
        NONE(1, 1),
        /** Key and value. */
        KEY_VALUE(1, 2),
        /** All three: they have equal heads and tokens. */
        ALL(3, 3);

        private final int queryParts;
        private final int keyParts;

        Packing(int queryParts, int keyParts) {
            this.queryParts = queryParts;
            this.keyParts = keyParts;
        }

        /** Returns how many tensors the buffer of the query holds. */
        public int queryParts() {
            return queryParts;
        }

        /** Returns how many tensors the buffer of the key holds: 1, 2 with the value, or 3 with query and value. */
        public int keyParts() {
            return keyParts;
        }
    }

    private final int code;
    private final QkvFormat format;
    private final Packing packing;

    QkvLayout(int code, QkvFormat format, Packing packing) {
        this.code = code;
        this.format = format;
        this.packing = packing;
    }

    /** Returns TE's number of this layout. */
    public int code() {
        return code;
    }

    /** Returns the order of the token dimensions. */
    public QkvFormat format() {
        return format;
    }

    /** Returns which of query, key and value share a buffer. */
    public Packing packing() {
        return packing;
    }

    /** Returns the layout of one buffer that holds query, key and value of every token side by side. */
    public static QkvLayout packed(QkvFormat format) {
        return switch (Checks.given("format", format)) {
            case SBHD -> SB3HD;
            case BSHD -> BS3HD;
            case THD -> T3HD;
        };
    }

    /** Returns the layout of a query alone and one buffer that holds key and value of every token side by side. */
    public static QkvLayout packedKeyValue(QkvFormat format) {
        return switch (Checks.given("format", format)) {
            case SBHD -> SBHD_SB2HD;
            case BSHD -> BSHD_BS2HD;
            case THD -> THD_T2HD;
        };
    }

    /** Returns the layout of three buffers. */
    public static QkvLayout separate(QkvFormat format) {
        return switch (Checks.given("format", format)) {
            case SBHD -> SBHD_SBHD_SBHD;
            case BSHD -> BSHD_BSHD_BSHD;
            case THD -> THD_THD_THD;
        };
    }
}
