package dev.chagres.trainer.command;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.EsmVocabulary;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * One residue in another's place, such as {@code A42G}: the residue that is there, its place counted from 1, the one that takes its place.
 *
 * <p>Threading: immutable.
 *
 * @param from the letter that is there
 * @param place counted from 1
 * @param to the letter that takes its place
 */
record Mutation(char from, int place, char to) {
    private static final Pattern TEXT = Pattern.compile("([A-Z])([1-9][0-9]{0,8})([A-Z])");

    /**
     * Reads mutations that a protein has together, such as {@code A42G} or {@code A42G:K50R}.
     *
     * @param where begins the text of the error
     * @throws IllegalArgumentException when the text is none, or has a place twice
     */
    static List<Mutation> of(String where, String text) {
        List<Mutation> all = new ArrayList<>();
        for (String one : text.split(":", -1)) {
            Matcher matcher = TEXT.matcher(one);
            if (!matcher.matches()
                    || EsmVocabulary.residueToken((byte) one.charAt(0)) < 0
                    || EsmVocabulary.residueToken((byte) one.charAt(one.length() - 1)) < 0) {
                throw new IllegalArgumentException(
                        where + ": expected mutations such as A42G or A42G:K50R, got " + plain(text));
            }
            Mutation mutation =
                    new Mutation(one.charAt(0), Integer.parseInt(matcher.group(2)), one.charAt(one.length() - 1));
            if (all.stream().anyMatch(other -> other.place == mutation.place)) {
                throw new IllegalArgumentException(where + ": expected each place once, got " + plain(text));
            }
            all.add(mutation);
        }
        return all;
    }

    private static String plain(String text) {
        return text.isEmpty() ? "nothing" : ForeignText.plain(text);
    }

    /**
     * Checks that the residue is there.
     *
     * @throws IllegalArgumentException when the protein is shorter, or has another residue there
     */
    void ensureFits(String where, String id, byte[] residues, int length) {
        if (place > length || residues[place - 1] != (byte) from) {
            throw new IllegalArgumentException(where + ": expected " + from + " at " + place + " of " + id + ", got "
                    + (place > length ? "a protein of " + length + " residues" : (char) residues[place - 1]));
        }
    }

    @Override
    public String toString() {
        return "" + from + place + to;
    }
}
