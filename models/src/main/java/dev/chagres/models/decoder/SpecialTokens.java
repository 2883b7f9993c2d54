package dev.chagres.models.decoder;

import java.util.List;
import java.util.Objects;
import java.util.Optional;

/**
 * Tokens that a decoder's text begins and ends with. The decoder does not compute with them; they are kept with it for whoever writes text,
 * and for its folder.
 *
 * <p>Threading: immutable.
 *
 * @param begin before a text; empty if there is none
 * @param ends any of which ends a text; the first one is that which training writes behind one
 * @param padding which fills up batches, without labels; empty if there is none
 */
public record SpecialTokens(Optional<Integer> begin, List<Integer> ends, Optional<Integer> padding) {
    /** Copies the list. */
    public SpecialTokens {
        Objects.requireNonNull(begin, "begin");
        ends = List.copyOf(ends);
        Objects.requireNonNull(padding, "padding");
    }

    /** None at all. */
    public static SpecialTokens none() {
        return new SpecialTokens(Optional.empty(), List.of(), Optional.empty());
    }
}
