package dev.chagres.train;

/**
 * How sequences lie in a micro-batch.
 *
 * <p>Threading: immutable.
 */
public enum BatchLayout {
    /** One after another without gaps, {@code [tokens]}; {@code cuSeqlens} says where each begins (THD). */
    PACKED,
    /** One a row, filled up to the context, {@code [sequences, context]} (BSHD). */
    PADDED
}
