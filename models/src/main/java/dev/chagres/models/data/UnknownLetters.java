package dev.chagres.models.data;

import java.util.Locale;

/**
 * What becomes of a FASTA file's letters that {@link Letters} does not have, such as {@code J}, or {@code *} within a sequence. Digits and
 * what is no printable ASCII are never taken.
 *
 * <p>Threading: immutable.
 */
public enum UnknownLetters {
    /** The file is refused. */
    REFUSE,
    /** Each becomes the token {@link EsmVocabulary#UNKNOWN}. */
    UNK,
    /** Sequences with one are left out. */
    SKIP;

    /** Returns the word that chooses it, {@code unk}. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }

    /**
     * How many there were.
     *
     * <p>Threading: immutable.
     *
     * @param letters unknown ones
     * @param sequences that have them
     */
    public record Count(long letters, long sequences) {
        /** None. */
        static final Count NONE = new Count(0, 0);

        Count plus(Count other) {
            return new Count(letters + other.letters, sequences + other.sequences);
        }

        /** Returns that of the pass over a file that got further. */
        Count or(Count other) {
            return sequences >= other.sequences ? this : other;
        }
    }
}
