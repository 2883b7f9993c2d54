package dev.chagres.batch;

/**
 * How sequences are laid out in a micro-batch.
 *
 * <p>Threading: immutable.
 */
public enum BatchLayout {
    /** One after another without gaps, {@code [tokens]}; {@code cuSeqlens} has the offset of each (THD). */
    PACKED,
    /** One sequence a row, padded to the context, {@code [sequences, context]} (BSHD). */
    PADDED
}
