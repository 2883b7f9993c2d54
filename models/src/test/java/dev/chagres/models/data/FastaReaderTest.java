package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

@Tag("L0")
class FastaReaderTest {
    private static List<String> read(byte[] content) {
        return read(Fasta.source(content));
    }

    private static List<String> read(FastaSource source) {
        var records = new ArrayList<String>();
        try (FastaReader reader = source.open()) {
            while (reader.advance()) {
                records.add(reader.header() + "="
                        + new String(reader.residues(), 0, reader.length(), StandardCharsets.US_ASCII));
            }
        }
        return records;
    }

    private static List<String> read(String text) {
        return read(Fasta.bytes(text));
    }

    static List<Arguments> taken() {
        return List.of(
                Arguments.of("no newline at the end", ">a\nMK", "[a=MK]"),
                Arguments.of("several lines", ">a b c\nMK\nVL\n>d\nAC\n", "[a b c=MKVL, d=AC]"),
                Arguments.of("CRLF", ">a\r\nMK\r\nV\r\n\r\n>b\r\nL\r\n", "[a=MKV, b=L]"),
                Arguments.of("CR alone", ">a\rMK\rV\r>b\rL", "[a=MKV, b=L]"),
                Arguments.of("lower case", ">a\nmkVx\n", "[a=MKVX]"),
                Arguments.of("star at the end", ">a\nMK*\n>b\nVL\n*\n\n", "[a=MK, b=VL]"),
                Arguments.of("blank lines", "\n \n>a\n\nMK\n\n\nV\n\n>b\nL\n\n", "[a=MKV, b=L]"),
                Arguments.of("blanks in a line", ">a\nMK V\tL  \n", "[a=MKVL]"),
                Arguments.of("ambiguity letters and gaps", ">a\nXBUZO.-\n", "[a=XBUZO.-]"),
                Arguments.of("byte order mark", "\u00ef\u00bb\u00bf>a\nMK\n", "[a=MK]"),
                Arguments.of("empty header", ">\nMK\n", "[=MK]"),
                Arguments.of("'>' and Ctrl-A within a header", ">a>b\u0001c 1\nMK\n", "[a>b\u0001c 1=MK]"));
    }

    static List<Arguments> otherFormats() {
        String pir = "PIR (NBRF), whose second line is a title";
        String database = "a database of MMseqs2";
        return List.of(
                Arguments.of(">P1;CRAB_ANAPL\nALPHA CRYSTALLIN B CHAIN.\n  MDITIHNPLI RRPLFSWLAP*\n", 1, pir),
                Arguments.of(">a\nMK\n>F1;X\nPART OF A PROTEIN\nMK*\n", 3, pir),
                Arguments.of("LOCUS       AAB12345   2 aa\nORIGIN\n  1 mk\n//\n", 1, "GenBank"),
                Arguments.of("ID   X56734; SV 1; linear; mRNA; STD; PLN; 1859 BP.\n", 1, "EMBL"),
                Arguments.of("ID   CRAB_ANAPL   Reviewed;   174 AA.\n", 1, "UniProtKB's text format"),
                Arguments.of("<?xml version=\"1.0\"?>\n<uniprot/>\n", 1, "XML"),
                Arguments.of("CLUSTAL W (1.82) multiple sequence alignment\n\na MK\n", 1, "Clustal"),
                Arguments.of("\n# STOCKHOLM 1.0\n\na MK\n//\n", 2, "Stockholm"),
                Arguments.of("#NEXUS\nbegin data;\n", 1, "NEXUS"),
                Arguments.of(" 2 4\na MKVL\nb MKVI\n", 1, "PHYLIP"),
                Arguments.of("HEADER    EYE LENS PROTEIN\n", 1, "PDB"),
                Arguments.of("data_1ABC\n#\n", 1, "mmCIF"),
                Arguments.of("@SQ\tSN:chr1\tLN:4\n", 1, "SAM"),
                Arguments.of("@read1\nACGT\n+\nIIII\n", 1, "FASTQ"),
                Arguments.of("MKVL\n\u0000MKVI\n\u0000", 1, database));
    }

    @ParameterizedTest
    @MethodSource("otherFormats")
    void namesTheFormatThatAFileHasInstead(String content, int line, String format) {
        for (byte[] bytes : List.of(Fasta.bytes(content), Fasta.gzip(Fasta.bytes(content)))) {
            String text = assertThrows(FastaException.class, () -> read(bytes)).getMessage();
            String expected = "x.fasta:" + line + ": this looks like " + format + ", not FASTA; convert it by ";
            assertTrue(text.startsWith(expected) && text.contains("FILE"), text);
        }
    }

    /** Headers of other programs, such as of VSEARCH, have semicolons, too. */
    @Test
    void takesHeadersThatOnlyResembleOtherFormats() {
        assertEquals(
                "[s1;size=3;=MK, P1 x;=VL, Q1;=AC]",
                read(">s1;size=3;\nMK\n>P1 x;\nVL\n>Q1;\nAC\n").toString());
    }

    @Test
    void namesWhatEndsEntriesWithZeros() {
        assertEquals(
                "x.fasta:3: a NUL byte at column 1: a FASTA file is text, and MMseqs2 ends entries of a database with one;"
                        + " convert it by mmseqs convert2fasta DATABASE FILE.fasta",
                assertThrows(FastaException.class, () -> read(">a\nMK\n\u0000>b\nVL\n\u0000"))
                        .getMessage());
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("taken")
    void takesFilesAsPeopleHaveThem(String name, String text, String expected) {
        assertEquals(expected, read(text).toString());
        assertEquals(expected, read(Fasta.gzip(Fasta.bytes(text))).toString());
    }

    @Test
    void hostileNamesAndLettersAreShownWithoutActing() {
        FastaSource source = FastaSource.of("a\u001b[2J", ">x\nM\u001b".getBytes(StandardCharsets.ISO_8859_1));
        FastaException refused = assertThrows(FastaException.class, () -> read(source));
        assertEquals(
                "a\\u001b[2J:2: byte 0x1b at column 2: it stands for no residue in ESM-2's vocabulary",
                refused.getMessage());
    }

    static List<Arguments> refused() {
        String start = "x.fasta:1: ";
        return List.of(
                Arguments.of("", start + "the file is empty; expected a '>' header line"),
                Arguments.of("\n\n \n", "x.fasta:4: only blank lines and comments; expected a '>' header line"),
                Arguments.of(
                        "\nMKV\n>a\nL\n",
                        "x.fasta:2: residues before the first header; a record begins with a '>' line"),
                Arguments.of(
                        "%PDF-1.4\n", start + "'%' before the first header; a FASTA record begins with a '>' line"),
                Arguments.of(" >a\nMK\n", start + "'>' at column 2; a header begins at the start of its line"),
                Arguments.of(">a\nMK>b\nL\n", "x.fasta:2: '>' at column 3; a header begins at the start of its line"),
                Arguments.of(
                        ">a\n>b\nMK\n",
                        start + "no residues follow this header; remove the record or add its sequence"),
                Arguments.of(
                        ">a\nMK\n>b\n",
                        "x.fasta:3: no residues follow this header; remove the record or add its sequence"),
                Arguments.of(">a", start + "no residues follow this header; remove the record or add its sequence"),
                Arguments.of(
                        ">a\nMK\nVL1\n",
                        "x.fasta:3: '1' at column 3: a sequence holds letters only, no position numbers"),
                Arguments.of(
                        ">a\r\nMK\r\n\r\nJ\r\n",
                        "x.fasta:4: 'J' at column 1: it stands for no residue in ESM-2's vocabulary"),
                Arguments.of(">a\nM@K\n", "x.fasta:2: '@' at column 2: it stands for no residue in ESM-2's vocabulary"),
                Arguments.of(
                        ">a\nM\u00e4\n",
                        "x.fasta:2: byte 0xe4 at column 2: it stands for no residue in ESM-2's vocabulary"),
                Arguments.of(">a\nMK\u0000V\n", "x.fasta:2: a NUL byte at column 3: a FASTA file is text"),
                Arguments.of(">a\u0000b\nMK\n", start + "a NUL byte at column 3: a FASTA file is text"),
                Arguments.of("*\n", start + "residues before the first header; a record begins with a '>' line"),
                Arguments.of(">a\n*MK\n", "x.fasta:2: '*' at column 1: '*' may only end a sequence"),
                Arguments.of(">a\nMK**\n", "x.fasta:2: '*' at column 4: '*' may only end a sequence"),
                Arguments.of(
                        ">a\nMK*\nVL\n", "x.fasta:3: a residue follows '*' at column 1; '*' may only end a sequence"),
                Arguments.of(
                        "\u007fELF\u0002\u0001",
                        start + "byte 0x7f before the first header; this is a binary file, not FASTA"),
                Arguments.of(
                        "\u0000\u0001\u0002",
                        start + "a NUL byte before the first header; this is a binary file, not FASTA"),
                Arguments.of(
                        "\u00ff\u00fe>\u0000a\u0000",
                        start + "byte 0xff before the first header; this is a binary file, not FASTA"),
                Arguments.of("PK\u0003\u0004rest", "x.fasta: is zip data; unpack it, or pack it as gz"),
                Arguments.of("BZh91AY&SY", "x.fasta: is bzip2 data; unpack it, or pack it as gz"),
                Arguments.of("\u00fd7zXZ\u0000", "x.fasta: is xz data; unpack it, or pack it as gz"),
                Arguments.of("\u0028\u00b5\u002f\u00fd", "x.fasta: is zstd data; unpack it, or pack it as gz"));
    }

    @ParameterizedTest(name = "{1}")
    @MethodSource("refused")
    void refusesInOneLine(String text, String message) {
        var e = assertThrows(FastaException.class, () -> read(text));
        assertEquals(message, e.getMessage());
    }

    @Test
    void refusesLongLinesWithoutHoldingThem() {
        for (String start : List.of(">a\n", ">")) {
            InputStream endless = new InputStream() {
                private long given;

                @Override
                public int read() {
                    given++;
                    assertTrue(given < 3 * FastaReader.MAX_LINE_BYTES, "read on beyond the limit");
                    return given <= start.length() ? start.charAt((int) given - 1) : 'A';
                }
            };
            var e = assertThrows(FastaException.class, () -> read(new FastaSource("x.fasta", false, () -> endless)));
            int line = start.length() > 1 ? 2 : 1;
            assertEquals("x.fasta:" + line + ": the line is longer than 1048576 bytes; is this FASTA?", e.getMessage());
        }
    }

    @Test
    void takesTheLongestLineAndRefusesALongerSequence() {
        String longest = "A".repeat(FastaReader.MAX_LINE_BYTES);
        assertEquals(
                longest.length() + 2, read(">a\n" + longest + "\n").getFirst().length());
        var e = assertThrows(FastaException.class, () -> read(">a\n" + longest + "\nA\n"));
        assertEquals("x.fasta:3: the sequence of line 1 has more than 1048576 residues", e.getMessage());
    }

    @Test
    void readsSeveralGzMembersAndPadding() throws IOException {
        byte[] first = Fasta.gzip(Fasta.bytes(">a\nMK\n"));
        byte[] second = Fasta.gzip(Fasta.bytes("V\n>b\nL\n"));
        byte[] empty = Fasta.gzip(new byte[0]);
        var joined = new java.io.ByteArrayOutputStream();
        for (byte[] part : List.of(first, empty, second, new byte[512])) {
            joined.write(part);
        }
        // A stream that gives one byte at a time, as a slow pipe does: member ends must not depend on the buffering.
        InputStream slow = new ByteArrayInputStream(joined.toByteArray()) {
            @Override
            public synchronized int read(byte[] b, int offset, int length) {
                return super.read(b, offset, Math.min(length, 1));
            }

            @Override
            public synchronized int available() {
                return 0;
            }
        };
        assertEquals(
                "[a=MKV, b=L]",
                read(new FastaSource("x.fasta", false, () -> slow)).toString());
    }

    @Test
    void refusesGzCutAnywhere() {
        byte[] whole = Fasta.gzip(Fasta.bytes(Fasta.drawn(new Random(5), 20, 50)));
        int records = read(whole).size();
        assertEquals(20, records);
        for (int length = 2; length < whole.length; length++) {
            byte[] cut = Arrays.copyOf(whole, length);
            var e = assertThrows(FastaException.class, () -> read(cut), "cut at " + length);
            assertTrue(
                    e.getMessage()
                            .matches("x\\.fasta: cannot be read: gz data ends in the middle.*"
                                    + "|x\\.fasta:\\d+: gz data ends in the middle \\(an unfinished download\\?\\)"),
                    e.getMessage());
        }
    }

    @Test
    void refusesGzWithAnyByteChanged() {
        byte[] whole = Fasta.gzip(Fasta.bytes(Fasta.drawn(new Random(6), 20, 50)));
        List<String> expected = read(whole);
        for (int at = 0; at < whole.length; at++) {
            byte[] changed = whole.clone();
            changed[at] ^= 0x55;
            try {
                // Time stamp, extra flags and system in the header are free; everything else is checked.
                assertEquals(expected, read(changed), "byte " + at);
                assertTrue(at >= 4 && at <= 9, "byte " + at + " changed and nobody noticed");
            } catch (FastaException e) {
                assertTrue(e.getMessage().lines().count() == 1, e.getMessage());
            }
        }
    }

    @Test
    void namesDamageAsACauseWhereTheFileIsGz() {
        byte[] content = Fasta.gzip(Fasta.bytes(">a\nMK7\n"));
        var e = assertThrows(FastaException.class, () -> read(content));
        assertEquals(
                "x.fasta:2: '7' at column 3: a sequence holds letters only, no position numbers, or the gz data is"
                        + " damaged (gzip -t tells)",
                e.getMessage());
    }

    @Test
    void refusesWhatFollowsGz() throws IOException {
        var joined = new java.io.ByteArrayOutputStream();
        joined.write(Fasta.gzip(Fasta.bytes(">a\nMK\n")));
        joined.write(Fasta.bytes(">b\nVL\n"));
        var e = assertThrows(FastaException.class, () -> read(joined.toByteArray()));
        assertEquals("x.fasta:3: bytes that are no gz follow the gz data", e.getMessage());
    }

    @Test
    void namesAbsentFilesAndDirectories(@TempDir Path folder) {
        Path absent = folder.resolve("absent.fasta");
        var e = assertThrows(FastaException.class, () -> read(FastaSource.of(absent)));
        assertEquals(absent + ": there is no such file", e.getMessage());
        e = assertThrows(FastaException.class, () -> read(FastaSource.of(folder)));
        assertEquals(folder + ": is a directory; name one FASTA file, plain or gz", e.getMessage());
    }

    @Test
    void namesMissingPermissionAndOtherFailures() {
        var e = FastaContent.unreadable("x.fasta", new AccessDeniedException("x.fasta"));
        assertEquals("x.fasta: no permission to read it; see ls -l, chmod", e.getMessage());
        e = FastaContent.unreadable("x.fasta", new FileSystemException("x.fasta", null, "Stale file handle"));
        assertEquals("x.fasta: cannot be read: Stale file handle", e.getMessage());
        e = FastaContent.unreadable("x.fasta", new IOException("Input/output error"));
        assertEquals("x.fasta: cannot be read: Input/output error", e.getMessage());
    }

    @Test
    void readsFilesAndCountsHeaderLines(@TempDir Path folder) throws IOException {
        Path file = Files.writeString(folder.resolve("a.fasta"), ">a\nMK\n\n>b\nL\n");
        try (FastaReader reader = FastaSource.of(file).open()) {
            assertTrue(reader.advance());
            assertEquals(1, reader.headerLine());
            assertTrue(reader.advance());
            assertEquals(4, reader.headerLine());
        }
    }

    @Test
    void shippedSequencesAreThoseThatTheirNoteNames() {
        int records = 0;
        long residues = 0;
        int shortest = Integer.MAX_VALUE;
        int longest = 0;
        try (FastaReader reader = FastaSource.shipped().open()) {
            while (reader.advance()) {
                records++;
                residues += reader.length();
                shortest = Math.min(shortest, reader.length());
                longest = Math.max(longest, reader.length());
                assertTrue(reader.header().startsWith("sp|"), reader.header());
            }
        }
        assertEquals("398 150393 8 2197", records + " " + residues + " " + shortest + " " + longest);
    }
}
