package dev.chagres.models.text;

import java.util.Objects;
import java.util.Optional;

/**
 * How texts become sequences.
 *
 * <p>Threading: immutable.
 *
 * @param context most tokens of a sequence, at least 2
 * @param end written behind each text and each completion, and learned; empty for none
 * @param seed what the order of sequences follows from
 */
public record TextConfig(int context, Optional<Integer> end, long seed) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the context is below 2, or the token negative
     */
    public TextConfig {
        Objects.requireNonNull(end, "end");
        if (context < 2) {
            throw new IllegalArgumentException("context: expected at least 2 tokens, got " + context);
        }
        if (end.orElse(0) < 0) {
            throw new IllegalArgumentException("end: expected a token from 0 on, got " + end.get());
        }
    }

    /** Sequences of up to {@code context} tokens, without a token behind texts, in the order of seed 0. */
    public static TextConfig of(int context) {
        return new TextConfig(context, Optional.empty(), 0);
    }

    /** Returns the same with a token behind each text and each completion. */
    public TextConfig withEnd(int newEnd) {
        return new TextConfig(context, Optional.of(newEnd), seed);
    }

    /** Returns the same in the order of another seed. */
    public TextConfig withSeed(long newSeed) {
        return new TextConfig(context, end, newSeed);
    }
}
