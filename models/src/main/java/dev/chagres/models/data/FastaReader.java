package dev.chagres.models.data;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.SequenceInputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Reads FASTA records one after another, in memory that does not grow with the file.
 *
 * <p>A record is a line that begins with {@code >} and the residue lines after it. Taken: plain text or gz (told by the
 * first bytes, several members too), line ends LF, CRLF or CR, lower case, blanks and blank lines, one {@code *} at a
 * sequence's end, a UTF-8 byte order mark. Every other byte is refused with the file and the line, counted from 1.
 *
 * <p>Threading: one thread at a time.
 */
public final class FastaReader implements AutoCloseable {
    /** The longest line taken, in bytes; the longest known protein has about 36,000 residues. */
    public static final int MAX_LINE_BYTES = 1 << 20;
    /** The longest sequence taken, in residues. */
    public static final int MAX_RESIDUES = 1 << 20;

    private static final String[][] ARCHIVES = {
        {"zip", "PK\u0003\u0004"}, {"bzip2", "BZh"}, {"xz", "\u00fd7zXZ"}, {"zstd", "\u0028\u00b5\u002f\u00fd"}
    };

    private final String name;
    private final InputStream in;
    private final boolean gzip;
    private final byte[] buffer = new byte[1 << 16];
    private int position;
    private int limit;
    private long line = 1;
    private int column;
    private boolean afterReturn;
    private boolean started;
    private boolean ended;

    private byte[] header = new byte[256];
    private int headerLength;
    private long headerLine;
    private byte[] residues = new byte[1024];
    private int length;
    private boolean starred;
    /** Null where every record is taken. */
    private final @Nullable Choice choice;

    private long read;
    private long taken;

    /** Says which records are taken. */
    @FunctionalInterface
    interface Choice {
        /** Returns whether a sequence of so many residues is. */
        boolean takes(byte[] residues, int length);
    }

    /**
     * Reads from a stream, which this reader owns from here on.
     *
     * @param name what errors begin with
     * @param stream plain or gz bytes
     * @throws IOException when the first bytes cannot be read
     */
    FastaReader(String name, InputStream stream) throws IOException {
        this(name, stream, null);
    }

    /**
     * Reads some records of a stream, which this reader owns from here on.
     *
     * @param name what errors begin with
     * @param stream plain or gz bytes
     * @param choice null for every record
     * @throws IOException when the first bytes cannot be read
     */
    FastaReader(String name, InputStream stream, @Nullable Choice choice) throws IOException {
        this.name = name;
        this.choice = choice;
        try {
            byte[] first = stream.readNBytes(8);
            refuseArchives(first);
            InputStream whole = new SequenceInputStream(new ByteArrayInputStream(first), stream);
            boolean isGzip = first.length >= 2 && first[0] == 0x1f && first[1] == (byte) 0x8b;
            this.gzip = isGzip;
            this.in = isGzip ? new GzipMembers(whole) : whole;
        } catch (IOException | FastaException e) {
            try {
                stream.close();
            } catch (IOException suppressed) {
                e.addSuppressed(suppressed);
            }
            throw e;
        }
    }

    /**
     * Goes to the next record.
     *
     * @return false when there is none left
     * @throws FastaException when the record, or the file, is not as the class describes, or none of its records was chosen
     */
    public boolean advance() {
        Choice present = choice;
        if (present == null) {
            return advanceByOne();
        }
        while (advanceByOne()) {
            read++;
            if (present.takes(residues, length)) {
                taken++;
                return true;
            }
        }
        if (taken == 0) {
            throw new FastaException(
                    name,
                    "evaluation and training divide its sequences, and one of them gets none of " + read
                            + "; hold out another fraction, or give a file to evaluate");
        }
        return false;
    }

    private boolean advanceByOne() {
        if (!started) {
            started = true;
            findFirstHeader();
        }
        if (ended) {
            return false;
        }
        readHeader();
        readResidues();
        if (length == 0) {
            throw new FastaException(
                    name,
                    headerLine,
                    "no residues follow this header; remove the record or add its sequence" + damageDoubt());
        }
        return true;
    }

    /** Returns the current record's header line without its {@code >}. */
    public String header() {
        return new String(header, 0, headerLength, StandardCharsets.UTF_8);
    }

    /** Returns the line of the current record's header, counted from 1. */
    public long headerLine() {
        return headerLine;
    }

    /** Returns the current record's residues as upper-case ASCII, valid up to {@link #length} and until the next record. */
    public byte[] residues() {
        return residues;
    }

    /** Returns the number of residues of the current record. */
    public int length() {
        return length;
    }

    @Override
    public void close() {
        try {
            in.close();
        } catch (IOException e) {
            throw FastaSource.unreadable(name, e);
        }
    }

    private void refuseArchives(byte[] first) {
        String start = new String(first, StandardCharsets.ISO_8859_1);
        for (String[] archive : ARCHIVES) {
            if (start.startsWith(archive[1])) {
                throw new FastaException(name, "is " + archive[0] + " data; unpack it, or pack it as gz");
            }
        }
    }

    private void findFirstHeader() {
        skipByteOrderMark();
        boolean anything = false;
        int c = next();
        while (isBlank(c)) {
            anything = true;
            c = next();
        }
        if (c == '>') {
            requireLineStart();
        } else if (c >= 0) {
            throw refuseStart(c);
        } else {
            throw new FastaException(
                    name, line, (anything ? "only blank lines" : "the file is empty") + "; expected a '>' header line");
        }
    }

    private void skipByteOrderMark() {
        if (limit == 0) {
            refill();
        }
        if (limit >= 3 && buffer[0] == (byte) 0xef && buffer[1] == (byte) 0xbb && buffer[2] == (byte) 0xbf) {
            position = 3;
        }
    }

    private void readHeader() {
        headerLine = line;
        headerLength = 0;
        for (int c = next(); c >= 0; c = next()) {
            if (c == '\n') {
                refusePir();
                return;
            }
            if (c == 0) {
                throw refuse(c);
            }
            if (headerLength == header.length) {
                header = Arrays.copyOf(header, 2 * headerLength);
            }
            header[headerLength++] = (byte) c;
        }
        ended = true;
    }

    private void refusePir() {
        if (headerLength > 2 && header[2] == ';' && OtherFormat.isPir(header())) {
            throw new FastaException(name, headerLine, OtherFormat.PIR.refusal());
        }
    }

    private void readResidues() {
        length = 0;
        starred = false;
        for (int c = next(); c >= 0; c = next()) {
            if (EsmVocabulary.residueToken((byte) c) >= 0) {
                append(c);
            } else if (c == '*' && !starred && length > 0) {
                starred = true;
            } else if (c == '>') {
                requireLineStart();
                return;
            } else if (!isBlank(c)) {
                throw refuse(c);
            }
        }
        ended = true;
    }

    private void append(int letter) {
        if (starred) {
            throw new FastaException(
                    name, line, "a residue follows '*' at column " + column + "; '*' may only end a sequence");
        }
        if (length == residues.length) {
            if (length >= MAX_RESIDUES) {
                throw new FastaException(
                        name,
                        line,
                        "the sequence of line " + headerLine + " has more than " + MAX_RESIDUES + " residues");
            }
            residues = Arrays.copyOf(residues, 2 * length);
        }
        residues[length++] = (byte) (letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter);
    }

    /** Returns the next byte with every line end as one LF, or -1 at the end; line and column follow it. */
    private int next() {
        if (column < 0) {
            line++;
            column = 0;
        }
        if (position == limit && !refill()) {
            return -1;
        }
        int c = buffer[position++] & 0xff;
        if (c == '\n' && afterReturn) {
            afterReturn = false;
            if (position == limit && !refill()) {
                return -1;
            }
            c = buffer[position++] & 0xff;
        }
        afterReturn = c == '\r';
        if (c == '\n' || c == '\r') {
            column = -1;
            return '\n';
        }
        if (++column > MAX_LINE_BYTES) {
            throw new FastaException(
                    name, line, "the line is longer than " + MAX_LINE_BYTES + " bytes; is this FASTA?");
        }
        return c;
    }

    private boolean refill() {
        try {
            int count = in.read(buffer, 0, buffer.length);
            position = 0;
            limit = Math.max(count, 0);
            return count > 0;
        } catch (IOException e) {
            String problem = e.getMessage() == null ? e.toString() : e.getMessage();
            throw new FastaException(name + ":" + line, problem, e);
        }
    }

    private static boolean isBlank(int c) {
        return c == '\n' || c == ' ' || c == '\t';
    }

    private void requireLineStart() {
        if (column != 1) {
            throw new FastaException(
                    name, line, "'>' at column " + column + "; a header begins at the start of its line");
        }
    }

    private FastaException refuseStart(int c) {
        var other = OtherFormat.ofStart((char) c + following(OtherFormat.START));
        if (other.isPresent()) {
            return new FastaException(name, line, other.get().refusal());
        }
        if (EsmVocabulary.residueToken((byte) c) >= 0 || c == '*') {
            return new FastaException(name, line, "residues before the first header; a record begins with a '>' line");
        }
        String what = describe(c) + " before the first header; ";
        boolean text = c >= ' ' && c < 0x7f;
        return new FastaException(
                name,
                line,
                what + (text ? "a FASTA record begins with a '>' line" : "this is a binary file, not FASTA"));
    }

    /** Returns the bytes from here on, as many as can be read, of a file that is refused anyway. */
    private String following(int most) {
        String read = new String(buffer, position, limit - position, StandardCharsets.ISO_8859_1);
        try {
            return read + new String(in.readNBytes(Math.max(0, most - read.length())), StandardCharsets.ISO_8859_1);
        } catch (IOException e) {
            return read;
        }
    }

    private FastaException refuse(int c) {
        String reason;
        if (c == 0) {
            reason = "a FASTA file is text"
                    + (column == 1
                            ? ", and MMseqs2 ends entries of a database with one; convert it "
                                    + "by mmseqs convert2fasta DATABASE FILE.fasta"
                            : "");
        } else if (c >= '0' && c <= '9') {
            reason = "a sequence holds letters only, no position numbers";
        } else if (c == '*') {
            reason = "'*' may only end a sequence";
        } else {
            reason = "it stands for no residue in ESM-2's vocabulary";
        }
        return new FastaException(name, line, describe(c) + " at column " + column + ": " + reason + damageDoubt());
    }

    /** Damage shows in the letters before the checksum behind them tells of it. */
    private String damageDoubt() {
        return gzip ? ", or the gz data is damaged (gzip -t tells)" : "";
    }

    private static String describe(int c) {
        if (c == 0) {
            return "a NUL byte";
        }
        return c > ' ' && c < 0x7f ? "'" + (char) c + "'" : String.format("byte 0x%02x", c);
    }
}
