package dev.chagres.models.data;

import java.util.Iterator;
import org.jspecify.annotations.Nullable;

/**
 * Reads FASTA records one after another, of one file or of several, in memory that does not grow with them.
 *
 * <p>A record is a line that begins with {@code >} and the residue lines after it. Taken: plain text or gz (told by the
 * first bytes, several members too), line ends LF, CRLF or CR, lower case, blanks and blank lines, lines that begin with {@code ;}
 * as comments, one {@code *} at a sequence's end, a UTF-8 byte order mark. Every other byte is refused with the file and the line,
 * counted from 1, unless {@link UnknownLetters} says otherwise.
 *
 * <p>Threading: one thread at a time.
 */
public final class FastaReader implements AutoCloseable {
    /** The longest line taken, in bytes; the longest known protein has about 36,000 residues. */
    public static final int MAX_LINE_BYTES = 1 << 20;
    /** The longest sequence taken, in residues. */
    public static final int MAX_RESIDUES = 1 << 20;

    /** Says which records are taken. */
    @FunctionalInterface
    interface Choice {
        /** Returns whether a sequence of so many residues is. */
        boolean takes(byte[] residues, int length);
    }

    private final FastaSource source;
    private final Iterator<FastaContent> files;
    /** Null where every record is taken. */
    private final @Nullable Choice choice;

    private FastaRecords records;
    private UnknownLetters.Count unknown = UnknownLetters.Count.NONE;
    private boolean countedLater;
    private long read;
    private long taken;

    /** Opens the first file. */
    FastaReader(FastaSource source, Iterator<FastaContent> files, @Nullable Choice choice) {
        this.source = source;
        this.files = files;
        this.choice = choice;
        records = files.next().open(source.letters(), source.unknownLetters());
    }

    /** Leaves it to the caller to tell the source of unknown letters. */
    void countLater() {
        countedLater = true;
    }

    /** Returns how many unknown letters were found so far. */
    UnknownLetters.Count unknown() {
        return unknown;
    }

    /**
     * Goes to the next record.
     *
     * @return false when there is none left
     * @throws FastaException when the record, or its file, is not as the class describes, or none of the records was chosen
     */
    public boolean advance() {
        while (advanceByOne()) {
            if (records.unknown() > 0) {
                unknown = unknown.plus(new UnknownLetters.Count(records.unknown(), 1));
                if (!countedLater) {
                    source.count(unknown);
                }
                if (source.unknownLetters() == UnknownLetters.SKIP) {
                    continue;
                }
            }
            read++;
            if (choice == null || choice.takes(records.residues(), records.length())) {
                taken++;
                return true;
            }
        }
        if (taken == 0) {
            throw new FastaException(
                    source.name(),
                    choice == null
                            ? "each of its sequences has unknown letters and is left out; take them as <unk>, or mend the file"
                            : "evaluation and training divide its sequences, and one of them gets none of " + read
                                    + "; hold out another fraction, or give a file to evaluate");
        }
        return false;
    }

    private boolean advanceByOne() {
        while (!records.advance()) {
            if (!files.hasNext()) {
                return false;
            }
            records.close();
            records = files.next().open(source.letters(), source.unknownLetters());
        }
        return true;
    }

    /** Returns the current record's header line without its {@code >}. */
    public String header() {
        return records.header();
    }

    /** Returns the line of the current record's header, counted from 1. */
    public long headerLine() {
        return records.headerLine();
    }

    /**
     * Returns the current record's residues as upper-case ASCII, valid up to {@link #length} and until the next record. Unknown letters that
     * are taken stand there as the file has them.
     */
    public byte[] residues() {
        return records.residues();
    }

    /** Returns the number of residues of the current record. */
    public int length() {
        return records.length();
    }

    @Override
    public void close() {
        records.close();
    }
}
