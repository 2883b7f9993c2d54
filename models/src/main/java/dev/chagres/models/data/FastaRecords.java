package dev.chagres.models.data;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.SequenceInputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * The records of one FASTA file, as {@link FastaReader} tells them, with unknown letters as they stand there.
 *
 * <p>Threading: one thread at a time.
 */
final class FastaRecords implements AutoCloseable {
    /** Of so many residues that are all nucleotides a file is none of proteins. */
    private static final int NUCLEOTIDES = 100;
    /** Different ones that must be among them, for a stretch of one amino acid is none of nucleotides. */
    private static final int LEAST_KINDS = 3;

    private static final String NUCLEOTIDE_LETTERS = "ACGTUN";

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
    /** How many {@code *} came after the last residue. */
    private int stars;

    private int unknown;

    private final Letters letters;
    private final boolean[] isLetter;
    private final boolean takesUnknown;
    /** Residues of the file until one was no nucleotide; -1 from then on. */
    private int nucleotides;
    /** Which of {@link #NUCLEOTIDE_LETTERS} were among them, a bit each. */
    private int kinds;

    /**
     * Reads a stream, which this owns from here on.
     *
     * @param name what errors begin with
     * @param stream plain or gz bytes
     * @throws IOException when the first bytes cannot be read
     */
    FastaRecords(String name, InputStream stream, Letters letters, UnknownLetters unknown) throws IOException {
        this.name = name;
        this.letters = letters;
        isLetter = letters.table();
        takesUnknown = unknown != UnknownLetters.REFUSE;
        nucleotides = letters == Letters.PROTEIN ? 0 : -1;
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
     * @throws FastaException when the record, or the file, is not as the reader describes
     */
    boolean advance() {
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

    String header() {
        return new String(header, 0, headerLength, StandardCharsets.UTF_8);
    }

    long headerLine() {
        return headerLine;
    }

    byte[] residues() {
        return residues;
    }

    int length() {
        return length;
    }

    /** Returns how many letters of the current record are unknown. */
    int unknown() {
        return unknown;
    }

    @Override
    public void close() {
        try {
            in.close();
        } catch (IOException e) {
            throw FastaContent.unreadable(name, e);
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
        while (isBlank(c) || isComment(c)) {
            anything = true;
            c = c == ';' ? afterComment() : next();
        }
        if (c == '>') {
            requireLineStart();
        } else if (c >= 0) {
            throw refuseStart(c);
        } else {
            throw new FastaException(
                    name,
                    line,
                    (anything ? "only blank lines and comments" : "the file is empty")
                            + "; expected a '>' header line");
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
        stars = 0;
        unknown = 0;
        for (int c = next(); c >= 0; c = next()) {
            if (isLetter[c]) {
                append(c);
            } else if (c == '*' && (takesUnknown || stars == 0 && length > 0)) {
                stars++;
            } else if (c == '>') {
                requireLineStart();
                keepInnerStars(stars - 1);
                return;
            } else if (isComment(c)) {
                afterComment();
            } else if (takesUnknown && c > ' ' && c < 0x7f && !(c >= '0' && c <= '9')) {
                append(c);
                unknown++;
            } else if (!isBlank(c)) {
                throw refuse(c);
            }
        }
        keepInnerStars(stars - 1);
        ended = true;
    }

    /** A line that begins with a semicolon is a comment. */
    private boolean isComment(int c) {
        return c == ';' && column == 1;
    }

    /** Leaves out the rest of a line, and returns its end, or -1 where the file ends. */
    private int afterComment() {
        int c = next();
        while (c >= 0 && c != '\n') {
            if (c == 0) {
                throw refuse(c);
            }
            c = next();
        }
        return c;
    }

    /** Appends {@code *} that ended no sequence, where unknown letters are taken. */
    private void keepInnerStars(int count) {
        stars = 0;
        for (int i = 0; i < count; i++) {
            append('*');
            unknown++;
        }
    }

    private void append(int letter) {
        if (stars > 0) {
            if (!takesUnknown) {
                throw new FastaException(
                        name, line, "a residue follows '*' at column " + column + "; '*' may only end a sequence");
            }
            keepInnerStars(stars);
        }
        if (length == residues.length) {
            if (length >= FastaReader.MAX_RESIDUES) {
                throw new FastaException(
                        name,
                        line,
                        "the sequence of line " + headerLine + " has more than " + FastaReader.MAX_RESIDUES
                                + " residues");
            }
            residues = Arrays.copyOf(residues, 2 * length);
        }
        int upper = letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter;
        residues[length++] = (byte) upper;
        if (nucleotides >= 0) {
            refuseNucleotides(upper);
        }
    }

    private void refuseNucleotides(int letter) {
        int kind = NUCLEOTIDE_LETTERS.indexOf(letter);
        if (kind < 0) {
            nucleotides = -1;
            return;
        }
        kinds |= 1 << kind;
        if (++nucleotides == NUCLEOTIDES) {
            nucleotides = -1;
            if (Integer.bitCount(kinds) >= LEAST_KINDS) {
                throw new FastaException(
                        name,
                        "the first " + NUCLEOTIDES
                                + " residues are A, C, G, T, U and N alone: this is no protein; translate"
                                + " it, or read it as nucleotides: --letters dna, --letters rna, Letters.DNA, Letters.RNA");
            }
        }
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
        if (++column > FastaReader.MAX_LINE_BYTES) {
            throw new FastaException(
                    name, line, "the line is longer than " + FastaReader.MAX_LINE_BYTES + " bytes; is this FASTA?");
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
            reason = letters.problem();
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
