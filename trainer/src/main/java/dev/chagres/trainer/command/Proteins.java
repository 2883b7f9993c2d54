package dev.chagres.trainer.command;

import dev.chagres.models.data.FastaReader;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.UnknownLetters;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * The records of a FASTA file, which was read once before anything is computed.
 *
 * <p>Threading: immutable.
 *
 * @param count of proteins
 * @param residues of all of them
 */
record Proteins(FastaSource source, long count, long residues) {
    /**
     * Reads the file, so that bad records are told before the first long computation.
     *
     * @param context the longest sequence in tokens, two more than residues
     * @param longer what becomes of proteins with more residues
     * @param others what could become of them instead of being refused
     * @throws dev.chagres.models.data.FastaException when it cannot be read, or has something that is no residue
     * @throws IllegalArgumentException when a protein is longer
     */
    static Proteins of(FastaSource source, int context, LongSequences longer, LongSequences... others) {
        source.ensureRepeatable();
        if (context < 3) {
            throw new CommandFailure(
                    "--model: expected max_position_embeddings of at least 3 (<cls>, one residue, <eos>), got "
                            + context);
        }
        int most = context - 2;
        long count = 0;
        long residues = 0;
        int tooLong = 0;
        String first = "";
        try (FastaReader reader = source.open()) {
            while (reader.advance()) {
                count++;
                residues += reader.length();
                if (reader.length() > most && tooLong++ == 0) {
                    first = id(reader.header(), count) + " with " + reader.length();
                }
            }
        }
        if (tooLong > 0 && longer == LongSequences.REFUSE) {
            String room = "larger --context, for --context " + context + " has room for " + most + " residues and "
                    + tooLong + " of " + count + " proteins have more, the first " + first;
            throw new IllegalArgumentException(
                    others.length == 0
                            ? "--fasta: expected shorter proteins, or a " + room
                            : "--long: expected "
                                    + Arrays.stream(others)
                                            .map(EnumOption::word)
                                            .collect(Collectors.joining(" or "))
                                    + ", or a " + room + "; got refuse");
        }
        return new Proteins(source, count, residues);
    }

    /** Writes how many unknown letters there were, where there were some. */
    void putUnknown(Map<String, Object> totals) {
        UnknownLetters.Count unknown = source.unknown();
        if (unknown.letters() > 0) {
            totals.put("unknownLetters", unknown.letters());
            totals.put("sequencesWithUnknownLetters", unknown.sequences());
            totals.put("unknown", source.unknownLetters().toString());
        }
    }

    /** Says how many unknown letters there were, where there were some. */
    void tellUnknown(PrintStream out) {
        String text = source.unknownText();
        if (!text.isEmpty()) {
            out.println(text);
        }
    }

    /** Returns the number of proteins as one says it: {@code 1 protein}, {@code 1,000 proteins}. */
    String text() {
        return String.format(Locale.ROOT, count == 1 ? "%,d protein" : "%,d proteins", count);
    }

    /** Returns the first word of a header, or the number of the record where there is none. */
    static String id(@Nullable String header, long number) {
        String text = header == null ? "" : header.startsWith(">") ? header.substring(1) : header;
        String[] words = text.strip().split("\\s+", 2);
        return words[0].isEmpty() ? "protein" + number : words[0];
    }
}
