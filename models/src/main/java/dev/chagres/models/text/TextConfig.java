package dev.chagres.models.text;

import dev.chagres.models.data.HeldOut;
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
 * @param texts which texts are taken
 * @param heldOut which texts are held out; empty where all are taken
 */
public record TextConfig(int context, Optional<Integer> end, long seed, Texts texts, Optional<HeldOut> heldOut) {
    /** Which texts of files are taken. */
    public enum Texts {
        /** All. */
        ALL,
        /** Those that are not held out, to train on. */
        OTHERS,
        /** Those that are held out, to evaluate. */
        HELD_OUT
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the context is below 2, the token negative, or a part is taken and nothing says which
     */
    public TextConfig {
        Objects.requireNonNull(texts, "texts");
        Objects.requireNonNull(heldOut, "heldOut");
        Objects.requireNonNull(end, "end");
        if (context < 2) {
            throw new IllegalArgumentException("context: expected at least 2 tokens, got " + context);
        }
        if (end.orElse(0) < 0) {
            throw new IllegalArgumentException("end: expected a token from 0 on, got " + end.get());
        }
        if (heldOut.isPresent() == (texts == Texts.ALL)) {
            throw new IllegalArgumentException("heldOut: expected one for OTHERS and HELD_OUT alone, got " + texts);
        }
    }

    /**
     * Takes all texts.
     *
     * @throws IllegalArgumentException when the context is below 2, or the token negative
     */
    public TextConfig(int context, Optional<Integer> end, long seed) {
        this(context, end, seed, Texts.ALL, Optional.empty());
    }

    /** Sequences of up to {@code context} tokens, without a token behind texts, in the order of seed 0. */
    public static TextConfig of(int context) {
        return new TextConfig(context, Optional.empty(), 0);
    }

    /** Returns the same with a token behind each text and each completion. */
    public TextConfig withEnd(int newEnd) {
        return new TextConfig(context, Optional.of(newEnd), seed, texts, heldOut);
    }

    /** Returns the same in the order of another seed. */
    public TextConfig withSeed(long newSeed) {
        return new TextConfig(context, end, newSeed, texts, heldOut);
    }

    /** Returns the same without the texts that are held out. */
    public TextConfig without(HeldOut held) {
        return new TextConfig(context, end, seed, Texts.OTHERS, Optional.of(held));
    }

    /** Returns the same of the texts that are held out. */
    public TextConfig only(HeldOut held) {
        return new TextConfig(context, end, seed, Texts.HELD_OUT, Optional.of(held));
    }

    /** Returns what tells this part from others; empty for all texts. */
    String part() {
        return heldOut.map(held -> (texts == Texts.OTHERS ? ", without " : ", only ") + held.fraction() + " held out")
                .orElse("");
    }

    /** Returns whether a text is taken. */
    boolean takes(byte[] text) {
        return heldOut.isEmpty() || heldOut.get().holds(text, text.length) == (texts == Texts.HELD_OUT);
    }
}
