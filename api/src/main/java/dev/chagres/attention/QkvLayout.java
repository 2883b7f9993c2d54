package dev.chagres.attention;

/**
 * How query, key and value lie in memory.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_QKV_Layout} in TE's {@code fused_attn.h}.
 */
public enum QkvLayout {
    /** One buffer [S, B, 3, h, d]. */
    SB3HD(0, Sequences.Format.SBHD),
    /** Three buffers [S, B, h, d]. */
    SBHD_SBHD_SBHD(4, Sequences.Format.SBHD),
    /** One buffer [B, S, 3, h, d]. */
    BS3HD(5, Sequences.Format.BSHD),
    /** Three buffers [B, S, h, d]. */
    BSHD_BSHD_BSHD(9, Sequences.Format.BSHD),
    /** One buffer [T, 3, h, d]. */
    T3HD(10, Sequences.Format.THD),
    /** Three buffers [T, h, d]. */
    THD_THD_THD(14, Sequences.Format.THD);

    private final int code;
    private final Sequences.Format format;

    QkvLayout(int code, Sequences.Format format) {
        this.code = code;
        this.format = format;
    }

    /** Returns TE's number of this layout. */
    public int code() {
        return code;
    }

    /** Returns the order of the token dimensions. */
    public Sequences.Format format() {
        return format;
    }

    /** Returns the layout of one buffer that holds query, key and value of every token side by side. */
    public static QkvLayout packed(Sequences.Format format) {
        return switch (format) {
            case SBHD -> SB3HD;
            case BSHD -> BS3HD;
            case THD -> T3HD;
        };
    }

    /** Returns the layout of three buffers. */
    public static QkvLayout separate(Sequences.Format format) {
        return switch (format) {
            case SBHD -> SBHD_SBHD_SBHD;
            case BSHD -> BSHD_BSHD_BSHD;
            case THD -> THD_THD_THD;
        };
    }
}
