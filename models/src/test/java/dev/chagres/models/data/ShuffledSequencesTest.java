package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.FilterInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
class ShuffledSequencesTest {
    private static final int COUNT = 300;
    private static final String TEXT = Fasta.drawn(new Random(1), COUNT, 60);

    private static List<String> take(ShuffledSequences sequences, int count) {
        var taken = new ArrayList<String>();
        for (int i = 0; i < count; i++) {
            assertTrue(sequences.advance());
            taken.add(new String(
                    sequences.residues(), sequences.offset(), sequences.length(), StandardCharsets.US_ASCII));
        }
        return taken;
    }

    private static ShuffledSequences open(long seed, int window) {
        return new ShuffledSequences(Fasta.source(TEXT), seed, window);
    }

    // One record a window, a few, about half, and everything.
    @ParameterizedTest
    @ValueSource(ints = {1, 100, 5_000, 1 << 26})
    void everyEpochHoldsEverySequenceOnceInAnotherOrder(int window) {
        try (ShuffledSequences sequences = open(42, window)) {
            List<String> first = take(sequences, COUNT);
            assertEquals(0, sequences.epoch());
            List<String> second = take(sequences, COUNT);
            assertEquals(1, sequences.epoch());
            List<String> third = take(sequences, COUNT);
            assertEquals(COUNT, new HashSet<>(first).size());
            assertEquals(new TreeSet<>(first), new TreeSet<>(second));
            assertEquals(new TreeSet<>(first), new TreeSet<>(third));
            if (window > 1) {
                assertNotEquals(first, second);
                assertNotEquals(second, third);
            }
        }
    }

    @Test
    void orderFollowsFromTheSeed() {
        try (var a = open(1, 1 << 20);
                var b = open(1, 1 << 20);
                var c = open(2, 1 << 20)) {
            List<String> first = take(a, 2 * COUNT);
            assertEquals(first, take(b, 2 * COUNT));
            assertNotEquals(first, take(c, 2 * COUNT));
        }
    }

    @Test
    void keysDifferAndBelongToTheSequenceWhateverTheWindow() {
        try (var whole = open(9, 1 << 20);
                var windowed = open(9, 700)) {
            Set<String> expected = keys(whole);
            assertEquals(expected, keys(windowed));
            assertEquals(
                    2 * COUNT,
                    expected.stream().map(k -> k.split(" ")[1]).distinct().count());
        }
    }

    private static Set<String> keys(ShuffledSequences sequences) {
        var keys = new TreeSet<String>();
        for (int i = 0; i < 2 * COUNT; i++) {
            String residues = take(sequences, 1).getFirst();
            keys.add(sequences.epoch() + residues + " " + sequences.key());
        }
        return keys;
    }

    @Test
    void shufflesEvenly() {
        int[] hits = new int[4];
        for (int seed = 0; seed < 8_000; seed++) {
            try (var sequences = new ShuffledSequences(Fasta.source(">\nA\n>\nC\n>\nD\n>\nE\n"), seed, 1000)) {
                hits["ACDE".indexOf(take(sequences, 1).getFirst())]++;
            }
        }
        for (int hit : hits) {
            assertEquals(2_000, hit, 5 * Math.sqrt(8_000 * 0.25 * 0.75));
        }
    }

    @Test
    void aPipeIsTakenWhenItFitsAndRefusedWhenItDoesNot() {
        byte[] content = Fasta.bytes(TEXT);
        var pipe = new FastaSource("/dev/stdin", false, () -> new ByteArrayInputStream(content));
        try (var sequences = new ShuffledSequences(pipe, 1, 1 << 20)) {
            take(sequences, 2 * COUNT);
        }
        try (var sequences = new ShuffledSequences(pipe, 1, 100)) {
            var e = assertThrows(FastaException.class, sequences::advance);
            assertEquals(
                    "/dev/stdin: holds more than 100 residues and cannot be read twice; save it as a file",
                    e.getMessage());
        }
    }

    private static final int MANY = 40_000;

    /** The second window is read before the first one is used up. */
    @Test
    void aThreadReadsAhead() throws InterruptedException {
        byte[] content = Fasta.bytes(Fasta.drawn(new Random(2), MANY, 60));
        var behindTheFirst = new CountDownLatch(1);
        var source =
                new FastaSource("many.fasta", true, () -> new FilterInputStream(new ByteArrayInputStream(content)) {
                    private long read;

                    @Override
                    public int read(byte[] bytes, int offset, int length) throws IOException {
                        int count = super.read(bytes, offset, length);
                        read += count;
                        if (read > content.length / 2) {
                            behindTheFirst.countDown();
                        }
                        return count;
                    }
                });
        try (var sequences = new ShuffledSequences(source, 1, content.length / 4)) {
            take(sequences, 1);
            assertTrue(behindTheFirst.await(1, TimeUnit.MINUTES));
        }
    }

    /** What is wrong behind a window is told when the window is used up. */
    @Test
    void aBadRecordEndsTheWindowBeforeIt() {
        byte[] content = Fasta.bytes(TEXT + ">bad\nAC1\n");
        try (var sequences = new ShuffledSequences(FastaSource.of("bad.fasta", content), 1, 2000)) {
            var taken = new ArrayList<String>();
            var e = assertThrows(FastaException.class, () -> {
                while (taken.size() <= COUNT) {
                    taken.addAll(take(sequences, 1));
                }
            });
            assertTrue(e.getMessage().startsWith("bad.fasta:"), e.getMessage());
            assertTrue(taken.size() > COUNT / 2 && taken.size() < COUNT, () -> "" + taken.size());
        }
    }

    @Test
    void refusesAnEmptyWindow() {
        var e = assertThrows(IllegalArgumentException.class, () -> open(1, 0));
        assertEquals("windowResidues: expected at least 1, got 0", e.getMessage());
    }
}
