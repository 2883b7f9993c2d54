package dev.chagres.conformance;

import dev.chagres.Scope;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.te.QkvFormat;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.commons.math3.linear.RealMatrix;

/**
 * An arrangement of sequences: which row of a [tokens, columns] matrix holds which position of which sequence.
 *
 * @param format order of the token dimensions
 * @param lengths of the sequences
 * @param padded length that each is padded to; 0 when they are packed
 * @param gaps rows behind each packed sequence that belong to none; empty: there are no gaps
 */
public record TokenRows(QkvFormat format, List<Integer> lengths, int padded, List<Integer> gaps) {
    /** Sequences without gaps between them. */
    public TokenRows(QkvFormat format, List<Integer> lengths, int padded) {
        this(format, lengths, padded, List.of());
    }

    /** Sequences one after another. */
    public static TokenRows packed(Integer... lengths) {
        return new TokenRows(QkvFormat.THD, Arrays.asList(lengths), 0);
    }

    /** Sequences padded to one length. */
    public static TokenRows padded(QkvFormat format, int padded, Integer... lengths) {
        return new TokenRows(format, Arrays.asList(lengths), padded);
    }

    /** Returns the rows of the matrices, those of padding included. */
    public int tokens() {
        return format == QkvFormat.THD ? IntStream.of(lengthsAndGaps()).sum() : lengths.size() * padded;
    }

    /** Returns the length of each packed sequence, the gap behind it included. */
    private int[] lengthsAndGaps() {
        return IntStream.range(0, lengths.size())
                .map(i -> lengths.get(i) + (gaps.isEmpty() ? 0 : gaps.get(i)))
                .toArray();
    }

    /** Returns the longest length. */
    public int longest() {
        return lengths.stream().mapToInt(Integer::intValue).max().orElse(0);
    }

    /** Returns the rows of each sequence in the order of its positions. */
    public List<int[]> rows() {
        List<int[]> all = new ArrayList<>();
        int[] lengthsAndGaps = lengthsAndGaps();
        int offset = 0;
        for (int sequence = 0; sequence < lengths.size(); sequence++) {
            int[] rows = new int[lengths.get(sequence)];
            for (int position = 0; position < rows.length; position++) {
                rows[position] = switch (format) {
                    case THD -> offset + position;
                    case BSHD -> sequence * padded + position;
                    case SBHD -> position * lengths.size() + sequence;
                };
            }
            offset += lengthsAndGaps[sequence];
            all.add(rows);
        }
        return all;
    }

    /** Returns the rows of each sequence, its padding or the gap behind it included. */
    public List<int[]> rowsAndPadding() {
        return format == QkvFormat.THD
                ? new TokenRows(format, IntStream.of(lengthsAndGaps()).boxed().toList(), 0).rows()
                : new TokenRows(format, Collections.nCopies(lengths.size(), padded), padded).rows();
    }

    /** Returns the rows that belong to no sequence. */
    public int[] paddingRows() {
        BitSet used = new BitSet();
        rows().forEach(rows -> Arrays.stream(rows).forEach(used::set));
        return IntStream.range(0, tokens()).filter(row -> !used.get(row)).toArray();
    }

    /** Returns the same arrangement for the layers; without padding when all sequences are full. */
    public Sequences sequences(Scope scope) {
        int[] each = lengths.stream().mapToInt(Integer::intValue).toArray();
        if (format == QkvFormat.THD) {
            return gaps.isEmpty()
                    ? Sequences.packed(CuSeqlens.ofLengths(scope, each))
                    : Sequences.packed(scope, each, lengthsAndGaps());
        }
        if (Arrays.stream(each).allMatch(length -> length == padded)) {
            return Sequences.dense(scope, format, each.length, padded);
        }
        return Sequences.padded(format, CuSeqlens.ofLengths(scope, each), padded);
    }

    /** Returns the entries of the rows that belong to sequences, one sequence after another. */
    public double[] entries(RealMatrix matrix) {
        int columns = matrix.getColumnDimension();
        double[] entries = new double[validTokens() * columns];
        int next = 0;
        for (int[] rows : rows()) {
            for (int row : rows) {
                System.arraycopy(matrix.getRow(row), 0, entries, next, columns);
                next += columns;
            }
        }
        return entries;
    }

    /** Returns the same elements of {@code values}, which has a row of {@code columns} for each token. */
    public float[] entries(float[] values, int columns) {
        float[] entries = new float[validTokens() * columns];
        int next = 0;
        for (int[] rows : rows()) {
            for (int row : rows) {
                System.arraycopy(values, row * columns, entries, next, columns);
                next += columns;
            }
        }
        return entries;
    }

    private int validTokens() {
        return lengths.stream().mapToInt(Integer::intValue).sum();
    }
}
