package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class FastaSourceTest {
    private static final String DNA = ">chr\n" + "GATTACAN".repeat(20) + "\n";

    @TempDir
    private Path folder;

    private static String read(FastaSource source) {
        List<String> records = new ArrayList<>();
        try (FastaReader reader = source.open()) {
            while (reader.advance()) {
                records.add(new String(reader.residues(), 0, reader.length(), StandardCharsets.US_ASCII));
            }
        }
        return String.join(" ", records);
    }

    private static String refusal(FastaSource source) {
        return assertThrows(FastaException.class, () -> read(source)).getMessage();
    }

    private Path write(String name, String text) throws IOException {
        Path file = folder.resolve(name);
        Files.createDirectories(file.getParent());
        return Files.write(file, name.endsWith(".gz") ? Fasta.gzip(Fasta.bytes(text)) : Fasta.bytes(text));
    }

    @Test
    void linesThatBeginWithASemicolonAreComments() {
        assertEquals("MKVL AC", read(Fasta.source("; made by hand\n;\n>a;b\nMK\n; 1 > 0 *\nVL\n;x\n>b\n;\nAC")));
        assertEquals(
                "x.fasta:2: only blank lines and comments; expected a '>' header line",
                refusal(Fasta.source(";>a\n;MK")));
        assertEquals(
                "x.fasta:2: ';' at column 2: it stands for no residue in ESM-2's vocabulary",
                refusal(Fasta.source(">a\nM;K\n")));
        assertEquals(
                "x.fasta:2: a NUL byte at column 2: a FASTA file is text", refusal(Fasta.source(">a\n;\u0000\nMK\n")));
    }

    @Test
    void unknownLettersAreTakenOrLeftOutAndCounted() {
        FastaSource source = Fasta.source(">a\nMJK\n>b\nAC\n>c\nM*K?\n*VJ**\n>d\n*L*\n");
        assertEquals("x.fasta:2: 'J' at column 2: it stands for no residue in ESM-2's vocabulary", refusal(source));
        FastaSource taken = source.withUnknownLetters(UnknownLetters.UNK);
        assertEquals("MJK AC M*K?*VJ* *L", read(taken));
        assertEquals(new UnknownLetters.Count(7, 3), taken.unknown());
        assertEquals("7 unknown letters of 3 sequences became <unk>: x.fasta", taken.unknownText());
        read(taken);
        assertEquals(new UnknownLetters.Count(7, 3), taken.unknown(), "a second pass counts nothing anew");
        FastaSource left = source.withUnknownLetters(UnknownLetters.SKIP);
        assertEquals("AC", read(left));
        assertEquals("3 sequences with 7 unknown letters left out: x.fasta", left.unknownText());
        assertEquals("", source.unknownText());
        assertNotEquals(taken.content(), left.content());
        assertTrue(refusal(Fasta.source(">a\nJ\n").withUnknownLetters(UnknownLetters.SKIP))
                .startsWith("x.fasta: each of its sequences has unknown letters"));
    }

    @Test
    void neitherDigitsNorBytesAreUnknownLetters() {
        for (String text : List.of(">a\nM1\n", ">a\nM\u0007\n", ">a\nM\u00e4\n", ">a\nM\u0000\n")) {
            assertTrue(refusal(Fasta.source(text).withUnknownLetters(UnknownLetters.UNK))
                    .startsWith("x.fasta:2: "));
        }
    }

    @Test
    void unknownLettersBecomeTheirTokenAndAreNotPredicted() {
        FastaSource source = Fasta.source(">a\n" + "JK".repeat(200) + "\n").withUnknownLetters(UnknownLetters.UNK);
        int[] ids = new int[402];
        int[] labels = new int[402];
        try (var proteins = new MaskedProteins(new FastaSequences(source))) {
            assertTrue(proteins.advance());
            assertTrue(proteins.write(ids, labels, 0, 402) > 0);
        }
        int[] unknown = IntStream.range(0, 200).map(i -> ids[1 + 2 * i]).toArray();
        assertArrayEquals(
                new int[200],
                IntStream.of(unknown).map(id -> id - EsmVocabulary.UNKNOWN).toArray());
        assertTrue(IntStream.of(labels).noneMatch(label -> label == EsmVocabulary.UNKNOWN));
    }

    @Test
    void nucleotidesGivenForProteinsAreRefused() {
        String text = refusal(Fasta.source(DNA));
        assertTrue(text.startsWith("x.fasta: the first 100 residues are A, C, G, T, U and N alone"), text);
        assertTrue(refusal(Fasta.source(">a\nACGUACGUAC\n".repeat(20))).contains("this is no protein"));
        assertEquals("GATTACAN".repeat(20), read(Fasta.source(DNA).withLetters(Letters.ANY)));
        assertEquals("GATTACAN".repeat(20), read(Fasta.source(DNA).withLetters(Letters.DNA)));
        assertEquals("A".repeat(500), read(Fasta.source(">a\n" + "A".repeat(500) + "\n")), "one kind is none");
        assertEquals("ACGTACGT", read(Fasta.source(">a\nACGTACGT\n")), "a few are none");
    }

    @Test
    void proteinsGivenForNucleotidesAreRefused() {
        FastaSource dna = Fasta.source(">a\nACGTNRYSWKMBDHV.-\n>b\nACU\n").withLetters(Letters.DNA);
        assertEquals("x.fasta:4: 'U' at column 3: it stands for no nucleotide of DNA", refusal(dna));
        assertEquals(
                "x.fasta:2: 'T' at column 4: it stands for no nucleotide of RNA",
                refusal(dna.withLetters(Letters.RNA)));
        assertEquals("ACU", read(Fasta.source(">b\nACU\n").withLetters(Letters.RNA)));
    }

    @Test
    void nucleotidesAreReplacedByNucleotides() {
        for (Letters letters : List.of(Letters.DNA, Letters.RNA)) {
            String four = letters == Letters.DNA ? "ACGT" : "ACGU";
            int[] ids = new int[4000];
            for (int i = 0; i < ids.length; i++) {
                ids[i] = EsmVocabulary.token((byte) four.charAt(i % 4));
            }
            int[] before = ids.clone();
            new Masking(letters).apply(ids, new int[4000], 0, 4000, 5);
            Map<Integer, Integer> replaced = new HashMap<>();
            for (int i = 0; i < ids.length; i++) {
                if (ids[i] != EsmVocabulary.MASK && ids[i] != before[i]) {
                    replaced.merge(ids[i], 1, Integer::sum);
                }
            }
            assertEquals(
                    four.chars().mapToObj(c -> EsmVocabulary.token((byte) c)).collect(Collectors.toSet()),
                    replaced.keySet());
        }
    }

    @Test
    void foldersAndPatternsAreReadInTheOrderOfTheirPaths() throws IOException {
        write("b.fasta", ">b\nAC\n");
        write("a.FA.gz", ">a\nMK\n>a2\nVL\n");
        write(".hidden.fasta", ">h\nW\n");
        write("notes.txt", "none");
        write("inner/c.faa", ">c\nDE\n");
        FastaSource all = FastaSource.matching(folder.toString());
        assertEquals("MK VL AC", read(all));
        assertEquals(folder.toString(), all.name());
        assertEquals(2, all.files().size());
        assertEquals(
                "AC",
                read(FastaSource.matching(folder + "/*.fasta").withLetters(Letters.ANY))
                        .strip());
        assertEquals("DE", read(FastaSource.matching(folder + "/*/c.f?a")));
        assertEquals("DE", read(FastaSource.matching(folder + "/**/*.{faa,fas}")));
        Path both = write("[x]*.fasta", ">x\nLL\n");
        assertEquals("LL", read(FastaSource.matching(both.toString())), "a file of that very name");
        assertEquals(
                folder + "/*.none: no file has such a name",
                assertThrows(FastaException.class, () -> FastaSource.matching(folder + "/*.none"))
                        .getMessage());
        Path empty = Files.createDirectory(folder.resolve("empty"));
        assertTrue(assertThrows(FastaException.class, () -> FastaSource.matching(empty.toString()))
                .getMessage()
                .startsWith(empty + ": holds no FASTA file"));
        String absent = folder.resolve("absent.fasta").toString();
        assertEquals(absent + ": there is no such file", refusal(FastaSource.matching(absent)));
    }

    /** A record of the second file is told by that file's name and line. */
    @Test
    void errorsNameTheFileAndItsLine() throws IOException {
        Path first = write("1.fasta", ">a\nMK\n");
        Path second = write("2.fasta", ">b\nVL\n>c\nM7\n");
        FastaSource both = FastaSource.joined(List.of(FastaSource.of(first), FastaSource.of(second)));
        assertEquals(second + ":4: '7' at column 2: a sequence holds letters only, no position numbers", refusal(both));
        assertEquals(first + ", " + second, both.name());
    }

    @Test
    void contentTellsFilesWeightsAndChoicesApart() throws IOException {
        FastaSource a = FastaSource.of(write("a.fasta", ">a\nMK\n"));
        FastaSource b = FastaSource.of(write("b.fasta", ">b\nVL\n"));
        List<String> contents = List.of(
                a.content(),
                FastaSource.joined(List.of(a, b)).content(),
                FastaSource.joined(List.of(b, a)).content(),
                FastaSource.mixture(List.of(a, b), List.of(0.7, 0.3)).content(),
                FastaSource.mixture(List.of(a, b), List.of(0.6, 0.4)).content(),
                FastaSource.mixture(List.of(a, a), List.of(0.7, 0.3)).content(),
                a.withLetters(Letters.DNA).content());
        assertEquals(contents.size(), contents.stream().distinct().count(), contents.toString());
        String before = FastaSource.joined(List.of(a, b)).content();
        write("b.fasta", ">b\nVI\n");
        assertNotEquals(before, FastaSource.joined(List.of(a, b)).content());
    }

    private static List<String> drawn(FastaSource source, long seed, int count) {
        List<String> sequences = new ArrayList<>();
        try (SequenceStream stream = source.shuffled(seed, 1 << 16)) {
            for (int i = 0; i < count && stream.advance(); i++) {
                sequences.add(new String(stream.residues(), stream.offset(), stream.length(), StandardCharsets.US_ASCII)
                        + stream.key());
            }
        }
        return sequences;
    }

    @Test
    void aMixtureHasTheSharesThatWereAskedFor() throws IOException {
        FastaSource small = FastaSource.of(write("small.fasta", ">a\nMMM\n>b\nMM\n"));
        FastaSource large = FastaSource.of(write("large.fasta", Fasta.drawn(new Random(3), 500, 20)));
        FastaSource mixture = FastaSource.mixture(List.of(small, large), List.of(2.0, 6.0));
        List<String> sequences = drawn(mixture, 9, 4000);
        long ofSmall = sequences.stream().filter(one -> one.startsWith("MM")).count();
        assertTrue(Math.abs(ofSmall - 1000) < 110, ofSmall + " of 4000, seed 9"); // four standard deviations
        assertEquals(sequences, drawn(mixture, 9, 4000));
        assertNotEquals(sequences, drawn(mixture, 10, 4000));
        assertEquals(4000, sequences.stream().distinct().count(), "each time with another key");
        assertEquals(502, read(mixture).split(" ").length, "read once, all are there");
    }

    @Test
    void wrongMixturesAreRefused() throws IOException {
        FastaSource a = FastaSource.of(write("a.fasta", ">a\nMK\n"));
        assertEquals(
                "weights: expected positive numbers, got 0.0",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> FastaSource.mixture(List.of(a, a), List.of(1.0, 0.0)))
                        .getMessage());
        assertEquals(
                "weights: expected one for each of 1 sources, got 2",
                assertThrows(IllegalArgumentException.class, () -> FastaSource.mixture(List.of(a), List.of(1.0, 1.0)))
                        .getMessage());
        assertEquals(
                "sources: expected a source or more, got none",
                assertThrows(IllegalArgumentException.class, () -> FastaSource.joined(List.of()))
                        .getMessage());
        FastaSource part = a.without(new HeldOut(0.5));
        assertThrows(IllegalStateException.class, () -> FastaSource.joined(List.of(a, part)));
    }

    /** Bytes changed, doubled, left out or put in, at drawn places: the file is read, or refused in a line that begins with its name. */
    @Test
    void mutatedFilesAreReadOrRefused() {
        Random random = new Random(11);
        byte[] plain = Fasta.bytes("; comment\n" + Fasta.drawn(random, 30, 60));
        int refused = 0;
        for (int i = 0; i < 3000; i++) {
            byte[] whole = i % 3 == 0 ? Fasta.gzip(plain) : plain;
            var mutated = new java.io.ByteArrayOutputStream();
            int at = random.nextInt(whole.length);
            int length = random.nextInt(20);
            int end = Math.min(whole.length, at + length);
            mutated.write(whole, 0, at);
            switch (random.nextInt(4)) {
                case 0 -> mutated.write(random.nextInt(256));
                case 1 -> mutated.write(whole, at, end - at); // twice
                case 2 -> mutated.write(new byte[length], 0, length);
                default -> end = whole.length; // cut
            }
            mutated.write(whole, end, whole.length - end);
            UnknownLetters unknown = UnknownLetters.values()[random.nextInt(3)];
            try {
                read(Fasta.source(mutated.toByteArray()).withUnknownLetters(unknown));
            } catch (FastaException told) {
                refused++;
                assertTrue(
                        told.getMessage().startsWith("x.fasta")
                                && told.getMessage().lines().count() == 1,
                        told::getMessage);
            }
        }
        assertTrue(refused > 500, refused + " refused");
    }
}
