package dev.chagres.samples.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

@Tag("L0")
class SequencePackerTest {
    private static SequencePacker packer(BatchShape shape, String text, long seed) {
        return new SequencePacker(shape, new ShuffledSequences(Fasta.source(text), seed, 1 << 20));
    }

    /** Returns each real sequence of a batch as its ids and labels. */
    private static List<String> contents(Batch batch) {
        var contents = new ArrayList<String>();
        for (int i = 0; i < batch.realSequences(); i++) {
            int length = batch.cuSeqlens()[i + 1] - batch.cuSeqlens()[i];
            int start = batch.shape().layout() == BatchLayout.PACKED
                    ? batch.cuSeqlens()[i]
                    : i * batch.shape().context();
            contents.add(Arrays.toString(Arrays.copyOfRange(batch.ids(), start, start + length))
                    + Arrays.toString(Arrays.copyOfRange(batch.labels(), start, start + length)));
        }
        return contents;
    }

    private static void checkInvariants(Batch batch) {
        BatchShape shape = batch.shape();
        int[] cu = batch.cuSeqlens();
        boolean packed = shape.layout() == BatchLayout.PACKED;
        assertEquals(0, batch.paddedTokens() % 16);
        assertTrue(batch.paddedTokens() <= shape.tokensPerStep());
        assertTrue(batch.tokens() <= batch.paddedTokens());
        assertTrue(batch.sequences() <= shape.maxSequences());
        assertEquals(0, cu[0]);
        assertEquals(packed ? batch.paddedTokens() : batch.tokens(), cu[batch.sequences()]);
        assertEquals(packed && batch.tokens() % 16 != 0 ? 1 : 0, batch.sequences() - batch.realSequences());
        int labels = 0;
        int real = 0;
        long pairs = 0;
        int longest = 0;
        for (int i = 0; i < batch.sequences(); i++) {
            int length = cu[i + 1] - cu[i];
            int start = packed ? cu[i] : i * shape.context();
            longest = Math.max(longest, length);
            assertTrue(length >= 1 && length <= shape.context());
            if (i < batch.realSequences()) {
                real += length;
                pairs += (long) length * length;
                labels += checkSequence(batch, start, length);
            }
            int end = packed ? cu[i + 1] : start + shape.context();
            for (int t = i < batch.realSequences() ? start + length : start; t < end; t++) {
                assertEquals(EsmVocabulary.PAD, batch.ids()[t]);
                assertEquals(Batch.IGNORED, batch.labels()[t]);
            }
        }
        assertEquals(batch.tokens(), real);
        assertEquals(batch.masked(), labels);
        assertEquals(batch.attendedPairs(), pairs);
        assertEquals(batch.longest(), longest);
    }

    private static int checkSequence(Batch batch, int start, int length) {
        assertEquals(EsmVocabulary.CLS, batch.ids()[start]);
        assertEquals(EsmVocabulary.EOS, batch.ids()[start + length - 1]);
        assertEquals(Batch.IGNORED, batch.labels()[start]);
        assertEquals(Batch.IGNORED, batch.labels()[start + length - 1]);
        int labels = 0;
        for (int t = start + 1; t < start + length - 1; t++) {
            int id = batch.ids()[t];
            assertTrue(id >= EsmVocabulary.FIRST_RESIDUE && id <= EsmVocabulary.MASK);
            labels += batch.labels()[t] == Batch.IGNORED ? 0 : 1;
        }
        assertTrue(labels >= 1);
        return labels;
    }

    @ParameterizedTest
    @EnumSource(BatchLayout.class)
    void invariantsHoldForDrawnData(BatchLayout layout) {
        long seed = System.nanoTime();
        System.out.println("SequencePackerTest seed " + seed);
        var random = new Random(seed);
        for (int round = 0; round < 200; round++) {
            int context = layout == BatchLayout.PADDED ? 16 * (1 + random.nextInt(5)) : 3 + random.nextInt(80);
            int tokens = (context + 15 + random.nextInt(300)) / 16 * 16;
            var shape = new BatchShape(layout, tokens, context);
            var batch = new Batch(shape);
            String text = Fasta.drawn(random, 1 + random.nextInt(30), 3 + random.nextInt(150));
            try (SequencePacker packer = packer(shape, text, random.nextLong())) {
                for (int i = 0; i < 20; i++) {
                    assertTrue(packer.fill(batch));
                    checkInvariants(batch);
                }
            }
        }
    }

    @Test
    void layoutsAndBudgetsCoverTheSameSequencesWithTheSameMasks() {
        String text = Fasta.drawn(new Random(3), 100, 90);
        var shapes = List.of(
                new BatchShape(BatchLayout.PACKED, 64, 64),
                new BatchShape(BatchLayout.PACKED, 512, 64),
                new BatchShape(BatchLayout.PADDED, 64, 64),
                new BatchShape(BatchLayout.PADDED, 256, 64));
        List<String> expected = null;
        for (BatchShape shape : shapes) {
            var seen = new ArrayList<String>();
            var batch = new Batch(shape);
            try (SequencePacker packer = packer(shape, text, 11)) {
                while (seen.size() < 250) {
                    assertTrue(packer.fill(batch));
                    seen.addAll(contents(batch));
                }
            }
            List<String> first = seen.subList(0, 250);
            expected = expected == null ? first : expected;
            assertEquals(expected, first, shape.toString());
        }
    }

    @Test
    void aSequenceThatFillsTheBudgetNeedsNoDummy() {
        var shape = new BatchShape(BatchLayout.PACKED, 32, 32);
        var batch = new Batch(shape);
        try (SequencePacker packer = packer(shape, ">\n" + "A".repeat(30) + "\n", 1)) {
            assertTrue(packer.fill(batch));
        }
        assertEquals(
                "1 1 32 32",
                batch.sequences() + " " + batch.realSequences() + " " + batch.tokens() + " " + batch.paddedTokens());
    }

    @Test
    void aLongSequenceGivesAStretchThatBeginsAnywhere() {
        String residues = "LAGVSERTIDPKQNFYMHWC";
        var shape = new BatchShape(BatchLayout.PACKED, 16, 12);
        var batch = new Batch(shape);
        int[] starts = new int[11];
        try (SequencePacker packer = packer(shape, ">\n" + residues + "\n", 1)) {
            for (int i = 0; i < 2000; i++) {
                assertTrue(packer.fill(batch));
                assertEquals(12, batch.tokens());
                int place = 1;
                while (batch.ids()[place] == EsmVocabulary.MASK || batch.labels()[place] != Batch.IGNORED) {
                    place++;
                }
                if (place < 11) {
                    starts[batch.ids()[place] - EsmVocabulary.FIRST_RESIDUE - (place - 1)]++;
                }
            }
        }
        for (int hits : starts) {
            assertTrue(hits > 100, Arrays.toString(starts));
        }
    }

    @Test
    void anEndedStreamGivesAnEmptyBatch() {
        var shape = new BatchShape(BatchLayout.PACKED, 16, 16);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, new ListedSequences(List.of()))) {
            assertFalse(packer.fill(batch));
        }
        assertEquals(0, batch.paddedTokens());
    }

    @Test
    void refusesShapesAndBatchesThatCannotWork() {
        assertMessage(
                "context: expected at least 3 (<cls>, one residue, <eos>), got 2",
                () -> new BatchShape(BatchLayout.PACKED, 16, 2));
        assertMessage(
                "tokensPerStep: expected a positive multiple of 16, got 24",
                () -> new BatchShape(BatchLayout.PACKED, 24, 16));
        assertMessage(
                "tokensPerStep: expected at least the context, 64, so that the longest sequence fits; got 32",
                () -> new BatchShape(BatchLayout.PACKED, 32, 64));
        assertMessage(
                "context: expected a multiple of 16 without packing, got 20",
                () -> new BatchShape(BatchLayout.PADDED, 32, 20));
        var shape = new BatchShape(BatchLayout.PACKED, 32, 32);
        var other = new BatchShape(BatchLayout.PACKED, 48, 32);
        assertMessage(
                "batch: expected one made for " + shape + ", got " + other,
                () -> packer(shape, ">\nA\n", 1).fill(new Batch(other)));
    }

    private static void assertMessage(String message, org.junit.jupiter.api.function.Executable action) {
        assertEquals(
                message, assertThrows(IllegalArgumentException.class, action).getMessage());
    }
}
