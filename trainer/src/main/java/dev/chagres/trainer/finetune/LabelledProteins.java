package dev.chagres.trainer.finetune;

import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.UnknownLetters;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import org.apache.commons.csv.CSVFormat;
import org.apache.commons.csv.CSVParser;
import org.apache.commons.csv.CSVRecord;
import org.jspecify.annotations.Nullable;

/**
 * Protein sequences with a label each, or with a label for each residue, as files have them.
 *
 * <p>Threading: immutable.
 */
final class LabelledProteins {
    private static final String SEQUENCE = "sequence";
    private static final String LABEL = "label";

    /** A sequence and its label as the file has them, and where. */
    record Row(String sequence, String label, String place) {}

    private final String name;
    private final Predicted predicted;
    private final List<Row> rows;

    private LabelledProteins(String name, Predicted predicted, List<Row> rows) {
        this.name = name;
        this.predicted = predicted;
        this.rows = rows;
    }

    /**
     * Reads a file.
     *
     * @param file CSV with the columns sequence and label, or FASTA
     * @param labels of FASTA a label a line, in the order of the records, those that are left out included; null for CSV
     * @param unknown what becomes of letters that the vocabulary lacks
     * @throws DataException when it cannot be read, or a line does not fit
     */
    static LabelledProteins read(
            String option, Path file, @Nullable Path labels, Predicted predicted, UnknownLetters unknown) {
        List<Row> rows;
        try {
            rows = labels == null ? csv(option, file) : fasta(option, file, labels, unknown);
        } catch (IOException | UncheckedIOException failure) {
            throw new DataException(option + ": " + file + " cannot be read: " + reason(failure), failure);
        }
        if (rows.isEmpty()) {
            throw new DataException(option + ": " + file + ": expected sequences, got none");
        }
        List<Row> known = rows.stream()
                .filter(row -> check(option, row, predicted, unknown) == 0 || unknown != UnknownLetters.SKIP)
                .toList();
        int leftOut = rows.size() - known.size();
        if (known.isEmpty()) {
            throw new DataException(option + ": " + file + ": expected sequences without unknown letters, got none");
        }
        return new LabelledProteins(
                file + (leftOut == 0 ? "" : ", " + leftOut + " with unknown letters left out"), predicted, known);
    }

    private static String reason(Exception failure) {
        return switch (failure) {
            case UncheckedIOException wrapped when wrapped.getCause() instanceof IOException cause -> reason(cause);
            case NoSuchFileException missing -> "there is no file " + ForeignText.plain(missing.getFile());
            case AccessDeniedException denied -> "no permission to read " + ForeignText.plain(denied.getFile());
            case CharacterCodingException _ -> "expected text in UTF-8, got other bytes";
            default -> ForeignText.plain(String.valueOf(failure.getMessage()));
        };
    }

    private static List<Row> csv(String option, Path file) throws IOException {
        CSVFormat format = CSVFormat.RFC4180
                .builder()
                .setHeader()
                .setSkipHeaderRecord(true)
                .setIgnoreEmptyLines(true)
                .setTrim(true)
                .get();
        try (Reader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8);
                CSVParser parser = format.parse(reader)) {
            List<String> columns = parser.getHeaderNames();
            if (!columns.contains(SEQUENCE) || !columns.contains(LABEL)) {
                String first = String.join(",", columns);
                throw new DataException(option + ": " + file + ": expected a first line with the columns sequence and"
                        + " label, got " + ForeignText.plain(first)
                        + (first.startsWith(">") ? "; the labels of a FASTA file are " + option + "-labels" : ""));
            }
            if (parser.getHeaderMap().size() != columns.size()) {
                throw new DataException(option + ": " + file + ": expected different columns, got "
                        + ForeignText.plain(String.join(",", columns)));
            }
            List<Row> rows = new ArrayList<>();
            for (CSVRecord each : parser) {
                String place = file + ": line " + parser.getCurrentLineNumber();
                if (!each.isConsistent()) {
                    throw new DataException(
                            option + ": " + place + ": expected " + columns.size() + " columns, got " + each.size());
                }
                rows.add(new Row(each.get(SEQUENCE), each.get(LABEL), place));
            }
            return rows;
        } catch (IllegalArgumentException wrong) { // a column twice, a quote that is not closed
            throw new DataException(
                    option + ": " + file + ": expected CSV: " + ForeignText.plain(String.valueOf(wrong.getMessage())),
                    wrong);
        }
    }

    private static List<Row> fasta(String option, Path file, Path labels, UnknownLetters unknown) throws IOException {
        List<String> given = Files.readAllLines(labels, StandardCharsets.UTF_8).stream()
                .map(String::strip)
                .filter(line -> !line.isEmpty())
                .toList();
        List<Row> rows = new ArrayList<>();
        FastaSource source = FastaSource.of(file)
                .withUnknownLetters(unknown == UnknownLetters.REFUSE ? unknown : UnknownLetters.UNK);
        try (FastaReader reader = source.open()) {
            while (reader.advance()) {
                String residues = new String(reader.residues(), 0, reader.length(), StandardCharsets.US_ASCII);
                int index = rows.size();
                if (index == given.size()) {
                    throw new DataException(option + ": " + file + ": expected as many sequences as " + labels
                            + " has labels, " + given.size() + ", got more");
                }
                rows.add(new Row(residues, given.get(index), file + ": sequence " + (index + 1)));
            }
        }
        if (rows.size() != given.size()) {
            throw new DataException(option + ": " + file + ": expected as many sequences as " + labels + " has labels, "
                    + given.size() + ", got " + rows.size());
        }
        return rows;
    }

    /** Returns how many letters are unknown. */
    private static int check(String option, Row row, Predicted predicted, UnknownLetters unknown) {
        int found = 0;
        String sequence = row.sequence();
        if (sequence.isEmpty()) {
            throw new DataException(option + ": " + row.place() + ": expected a sequence, got an empty one");
        }
        for (int i = 0; i < sequence.length(); i++) {
            char letter = sequence.charAt(i);
            if (letter <= 127 && EsmVocabulary.residueToken((byte) letter) >= 0) {
                continue;
            }
            found++;
            if (unknown == UnknownLetters.REFUSE || letter <= ' ' || letter >= 127 || letter >= '0' && letter <= '9') {
                throw new DataException(option + ": " + row.place() + ": expected letters of residues, got "
                        + ForeignText.plain(String.valueOf(letter)) + " at position " + (i + 1));
            }
        }
        if (row.label().isEmpty() && predicted != Predicted.MULTI_LABEL) {
            throw new DataException(option + ": " + row.place() + ": expected a label, got none");
        }
        if (predicted == Predicted.TOKENS && row.label().length() != sequence.length()) {
            throw new DataException(option + ": " + row.place() + ": expected a letter for each of " + sequence.length()
                    + " residues as the label, got " + row.label().length());
        }
        return found;
    }

    /**
     * Returns those that are held out.
     *
     * @throws DataException when there are none
     */
    LabelledProteins only(HeldOut heldOut) {
        return part(name + ", held out", row -> holds(heldOut, row));
    }

    /**
     * Returns those that are not held out.
     *
     * @throws DataException when there are none
     */
    LabelledProteins without(HeldOut heldOut) {
        return part(name, row -> !holds(heldOut, row));
    }

    private static boolean holds(HeldOut heldOut, Row row) {
        byte[] residues = row.sequence().getBytes(StandardCharsets.US_ASCII);
        return heldOut.holds(residues, residues.length);
    }

    private LabelledProteins part(String told, Predicate<Row> taken) {
        List<Row> part = rows.stream().filter(taken).toList();
        if (part.isEmpty()) {
            throw new DataException("--eval-fraction: expected sequences to train on and to evaluate, got "
                    + rows.size() + " in all, none of them " + (told.equals(name) ? "to train on" : "to evaluate"));
        }
        return new LabelledProteins(told, predicted, part);
    }

    List<Row> rows() {
        return rows;
    }

    /** Returns the longest sequence's tokens. */
    int longest() {
        return rows.stream().mapToInt(row -> row.sequence().length()).max().orElseThrow() + LabelledSequences.ENDS;
    }

    /**
     * Returns the sequences with what the model reads of their labels.
     *
     * @throws DataException when a label is none of the task
     */
    LabelledSequences labelled(String option, TaskLabels labels) {
        return new LabelledSequences(
                predicted.task(),
                rows.stream()
                        .map(row -> row.sequence().getBytes(StandardCharsets.US_ASCII))
                        .toList(),
                rows.stream().map(row -> labels.of(option, row)).toList());
    }

    @Override
    public String toString() {
        return rows.size() + " sequences of " + name;
    }
}
