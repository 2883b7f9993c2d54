package dev.chagres.samples.data;

/** How sequences lie in a batch. */
public enum BatchLayout {
    /** One after another without gaps, {@code [tokens]}; {@code cuSeqlens} says where each begins (THD). */
    PACKED,
    /** One a row, filled up to the context, {@code [sequences, context]} (BSHD). */
    PADDED
}
