package dev.chagres.trainer.finetune;

import dev.chagres.batch.Batch;
import dev.chagres.batch.TokenSequences;
import dev.chagres.bindings.ForeignText;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.FastaReader;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeSet;
import org.apache.commons.csv.CSVFormat;
import org.apache.commons.csv.CSVParser;
import org.apache.commons.csv.CSVRecord;
import org.jspecify.annotations.Nullable;

/**
 * Protein sequences with a label each, or with a label for each residue, whose classes have names.
 *
 * <p>Threading: immutable.
 */
final class LabelledProteins {
    private static final String SEQUENCE = "sequence";
    private static final String LABEL = "label";
    private static final int ENDS = 2;

    /** A sequence and its label as the file has them, and where. */
    private record Row(String sequence, String label, String place) {}

    private final String name;
    private final Task task;
    private final List<Row> rows;

    private LabelledProteins(String name, Task task, List<Row> rows) {
        this.name = name;
        this.task = task;
        this.rows = rows;
    }

    /**
     * Reads a file.
     *
     * @param file CSV with the columns sequence and label, or FASTA
     * @param labels of FASTA a label a line, in the order of the records; null for CSV
     * @throws DataException when it cannot be read, or a line does not fit
     */
    static LabelledProteins read(String option, Path file, @Nullable Path labels, Task task) {
        List<Row> rows;
        try {
            rows = labels == null ? csv(option, file) : fasta(option, file, labels);
        } catch (IOException | UncheckedIOException failure) {
            throw new DataException(
                    option + ": " + file + " cannot be read: " + ForeignText.plain(failure.toString()), failure);
        }
        if (rows.isEmpty()) {
            throw new DataException(option + ": " + file + ": expected sequences, got none");
        }
        rows.forEach(row -> check(option, row, task));
        return new LabelledProteins(file.toString(), task, rows);
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
                throw new DataException(option + ": " + file + ": expected a first line with the columns sequence and"
                        + " label, got " + ForeignText.plain(String.join(",", columns)));
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

    private static List<Row> fasta(String option, Path file, Path labels) throws IOException {
        List<String> given = Files.readAllLines(labels, StandardCharsets.UTF_8).stream()
                .map(String::strip)
                .filter(line -> !line.isEmpty())
                .toList();
        List<Row> rows = new ArrayList<>();
        try (FastaReader reader = FastaSource.of(file).open()) {
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

    private static void check(String option, Row row, Task task) {
        String sequence = row.sequence();
        if (sequence.isEmpty()) {
            throw new DataException(option + ": " + row.place() + ": expected a sequence, got an empty one");
        }
        for (int i = 0; i < sequence.length(); i++) {
            char letter = sequence.charAt(i);
            if (letter > 127 || EsmVocabulary.residueToken((byte) letter) < 0) {
                throw new DataException(option + ": " + row.place() + ": expected letters of residues, got "
                        + ForeignText.plain(String.valueOf(letter)) + " at position " + (i + 1));
            }
        }
        if (row.label().isEmpty()) {
            throw new DataException(option + ": " + row.place() + ": expected a label, got none");
        }
        if (task == Task.TOKENS && row.label().length() != sequence.length()) {
            throw new DataException(option + ": " + row.place() + ": expected a letter for each of " + sequence.length()
                    + " residues as the label, got " + row.label().length());
        }
    }

    /** Returns the names of the classes: numbers by size, others by the alphabet. */
    List<String> classes() {
        TreeSet<String> names = new TreeSet<>();
        for (Row row : rows) {
            if (task == Task.TOKENS) {
                row.label().chars().forEach(letter -> names.add(String.valueOf((char) letter)));
            } else {
                names.add(row.label());
            }
        }
        boolean areNumbers = names.stream().allMatch(each -> each.matches("\\d{1,9}"));
        return areNumbers
                ? names.stream()
                        .sorted((a, b) -> Integer.compare(Integer.parseInt(a), Integer.parseInt(b)))
                        .toList()
                : List.copyOf(names);
    }

    int size() {
        return rows.size();
    }

    /** Returns the longest sequence's tokens. */
    int longest() {
        return rows.stream().mapToInt(row -> row.sequence().length()).max().orElseThrow() + ENDS;
    }

    /**
     * Returns the labels by number.
     *
     * @throws DataException when a label is none of {@code classes}
     */
    Numbered numbered(String option, List<String> classes) {
        Map<String, Integer> numbers = new HashMap<>();
        for (int i = 0; i < classes.size(); i++) {
            numbers.put(classes.get(i), i);
        }
        List<int[]> labels = new ArrayList<>();
        for (Row row : rows) {
            String[] parts = task == Task.TOKENS ? row.label().split("") : new String[] {row.label()};
            int[] own = new int[parts.length];
            for (int i = 0; i < parts.length; i++) {
                Integer number = numbers.get(parts[i]);
                if (number == null) {
                    throw new DataException(option + ": " + row.place() + ": expected one of the labels "
                            + ForeignText.plain(String.join(", ", classes)) + ", got " + ForeignText.plain(parts[i]));
                }
                own[i] = number;
            }
            labels.add(own);
        }
        return new Numbered(
                task,
                rows.stream()
                        .map(row -> row.sequence().getBytes(StandardCharsets.US_ASCII))
                        .toList(),
                labels);
    }

    @Override
    public String toString() {
        return rows.size() + " sequences of " + name;
    }

    /**
     * The sequences, and the numbers of their classes.
     *
     * <p>Threading: immutable.
     *
     * @param labels of each sequence one, or one of each residue
     */
    record Numbered(Task task, List<byte[]> sequences, List<int[]> labels) {
        /** Opens them once, in the file's order. */
        TokenSequences once() {
            return new Epochs(this, 1, null);
        }

        /** Opens them several times, each time in another order. */
        TokenSequences epochs(int epochs, long seed) {
            return new Epochs(this, epochs, seed);
        }
    }

    /** {@code <cls> residues <eos>}, of a sequence longer than the context its first residues. */
    private static final class Epochs implements TokenSequences {
        private final Numbered data;
        private final int epochs;
        private final @Nullable Long seed;
        private final int[] order;
        private int epoch;
        private int next;
        private int current;

        Epochs(Numbered data, int epochs, @Nullable Long seed) {
            this.data = data;
            this.epochs = epochs;
            this.seed = seed;
            order = new int[data.sequences().size()];
            Arrays.setAll(order, i -> i);
            shuffle();
        }

        private void shuffle() {
            if (seed == null) {
                return;
            }
            var random = new SplittableRandom(seed + 0x9E3779B97F4A7C15L * epoch);
            for (int i = order.length - 1; i > 0; i--) {
                int other = random.nextInt(i + 1);
                int swapped = order[i];
                order[i] = order[other];
                order[other] = swapped;
            }
        }

        @Override
        public boolean advance() {
            if (next == order.length) {
                epoch++;
                if (epoch >= epochs) {
                    epoch = epochs;
                    return false;
                }
                next = 0;
                shuffle();
            }
            current = order[next++];
            return true;
        }

        @Override
        public int length() {
            return data.sequences().get(current).length + ENDS;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            byte[] residues = data.sequences().get(current);
            int[] own = data.labels().get(current);
            int kept = count - ENDS;
            Arrays.fill(labels, start, start + count, Batch.IGNORED);
            ids[start] = EsmVocabulary.CLS;
            for (int i = 0; i < kept; i++) {
                ids[start + 1 + i] = EsmVocabulary.residueToken(residues[i]);
            }
            ids[start + 1 + kept] = EsmVocabulary.EOS;
            if (data.task() == Task.SEQUENCES) {
                labels[start] = own[0];
                return 1;
            }
            System.arraycopy(own, 0, labels, start + 1, kept);
            return kept;
        }

        @Override
        public int padding() {
            return EsmVocabulary.PAD;
        }
    }
}
