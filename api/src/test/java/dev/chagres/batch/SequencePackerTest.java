package dev.chagres.batch;

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
    /** Returns each sequence of a micro-batch that came from the data, as its ids and labels. */
    private static List<String> contents(BatchShape shape, MicroBatch batch) {
        var contents = new ArrayList<String>();
        for (int i = 0; i < batch.realSequences(); i++) {
            int length = batch.cuSeqlens()[i + 1] - batch.cuSeqlens()[i];
            int start = shape.layout() == BatchLayout.PACKED ? batch.cuSeqlens()[i] : i * shape.context();
            contents.add(Arrays.toString(Arrays.copyOfRange(batch.ids(), start, start + length))
                    + Arrays.toString(Arrays.copyOfRange(batch.labels(), start, start + length)));
        }
        return contents;
    }

    private static List<String> contents(Batch batch) {
        var contents = new ArrayList<String>();
        for (int i = 0; i < batch.microBatches(); i++) {
            contents.addAll(contents(batch.shape(), batch.microBatch(i)));
        }
        return contents;
    }

    /** Checks a micro-batch whose first sequence has number {@code first}; returns the number after its last one's. */
    private static int checkInvariants(BatchShape shape, MicroBatch batch, int first) {
        int[] cu = batch.cuSeqlens();
        boolean packed = shape.layout() == BatchLayout.PACKED;
        assertEquals(0, batch.paddedTokens() % 16);
        assertTrue(batch.paddedTokens() <= shape.tokensPerMicroBatch());
        assertTrue(batch.tokens() <= batch.paddedTokens());
        assertTrue(batch.sequences() <= shape.maxSequences());
        assertEquals(0, cu[0]);
        assertEquals(packed ? batch.paddedTokens() : batch.tokens(), cu[batch.sequences()]);
        assertEquals(
                packed ? Math.ceilDiv(batch.paddedTokens() - batch.tokens(), shape.context()) : 0,
                batch.sequences() - batch.realSequences());
        int labels = 0;
        int real = 0;
        long pairs = 0;
        int longest = 0;
        for (int i = 0; i < batch.sequences(); i++) {
            int length = cu[i + 1] - cu[i];
            int start = packed ? cu[i] : i * shape.context();
            boolean ofData = i < batch.realSequences();
            longest = Math.max(longest, length);
            assertTrue(length >= 1 && length <= shape.context());
            for (int t = 0; ofData && t < length; t++) {
                assertEquals(NumberedSequences.token(first + i, t), batch.ids()[start + t]);
                assertEquals(NumberedSequences.label(first + i, t), batch.labels()[start + t]);
                labels += batch.labels()[start + t] == Batch.IGNORED ? 0 : 1;
            }
            real += ofData ? length : 0;
            pairs += ofData ? (long) length * length : 0;
            int end = packed ? cu[i + 1] : start + shape.context();
            for (int t = ofData ? start + length : start; t < end; t++) {
                assertEquals(NumberedSequences.PADDING, batch.ids()[t]);
                assertEquals(Batch.IGNORED, batch.labels()[t]);
            }
        }
        assertEquals(batch.tokens(), real);
        assertEquals(batch.labelled(), labels);
        assertEquals(batch.attendedPairs(), pairs);
        assertEquals(batch.longest(), longest);
        return first + batch.realSequences();
    }

    @ParameterizedTest
    @EnumSource(BatchLayout.class)
    void invariantsHoldForDrawnData(BatchLayout layout) {
        long seed = System.nanoTime();
        System.out.println("SequencePackerTest seed " + seed);
        var random = new Random(seed);
        for (int round = 0; round < 200; round++) {
            int context = layout == BatchLayout.PADDED ? 16 * (1 + random.nextInt(5)) : 1 + random.nextInt(80);
            int parts = 1 + random.nextInt(4);
            int tokens = (context + 15 + random.nextInt(300)) / 16 * 16 * parts;
            var shape = new BatchShape(layout, tokens, context, parts);
            var batch = new Batch(shape);
            int next = 0;
            try (var packer = new SequencePacker(shape, NumberedSequences.drawn(random.nextLong(), 150))) {
                for (int i = 0; i < 20; i++) {
                    assertTrue(packer.fill(batch));
                    assertEquals(parts, batch.microBatches());
                    for (int part = 0; part < parts; part++) {
                        next = checkInvariants(shape, batch.microBatch(part), next);
                    }
                    checkSums(batch);
                }
            }
        }
    }

    private static void checkSums(Batch batch) {
        int tokens = 0;
        int padded = 0;
        int labelled = 0;
        long pairs = 0;
        double shares = 0;
        for (int i = 0; i < batch.microBatches(); i++) {
            MicroBatch part = batch.microBatch(i);
            tokens += part.tokens();
            padded += part.paddedTokens();
            labelled += part.labelled();
            pairs += part.attendedPairs();
            shares += batch.share(i);
            assertEquals(part.labelled(), batch.share(i) * batch.labelled(), 1e-9);
        }
        assertEquals(
                tokens + " " + padded + " " + labelled + " " + pairs,
                batch.tokens() + " " + batch.paddedTokens() + " " + batch.labelled() + " " + batch.attendedPairs());
        assertEquals(1, shares, 1e-12);
    }

    @Test
    void layoutsAndBudgetsCoverTheSameSequences() {
        var shapes = List.of(
                new BatchShape(BatchLayout.PACKED, 64, 64),
                new BatchShape(BatchLayout.PACKED, 512, 64),
                new BatchShape(BatchLayout.PACKED, 512, 64, 4),
                new BatchShape(BatchLayout.PADDED, 64, 64),
                new BatchShape(BatchLayout.PADDED, 256, 64, 2));
        List<String> expected = null;
        for (BatchShape shape : shapes) {
            var seen = new ArrayList<String>();
            var batch = new Batch(shape);
            try (var packer = new SequencePacker(shape, NumberedSequences.drawn(11, 90))) {
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

    @ParameterizedTest
    @EnumSource(BatchLayout.class)
    void aMicroBatchIsWhatABatchOfItsBudgetWouldBe(BatchLayout layout) {
        var whole = new BatchShape(layout, 1024, 64, 4);
        var single = new BatchShape(layout, 256, 64);
        var batch = new Batch(whole);
        var one = new Batch(single);
        try (var packer = new SequencePacker(whole, NumberedSequences.drawn(5, 90));
                var alone = new SequencePacker(single, NumberedSequences.drawn(5, 90))) {
            for (int step = 0; step < 20; step++) {
                assertTrue(packer.fill(batch));
                for (int part = 0; part < 4; part++) {
                    assertTrue(alone.fill(one));
                    assertEquals(contents(one), contents(whole, batch.microBatch(part)));
                }
            }
        }
    }

    @Test
    void theDataMayEndInTheMiddleOfAStep() {
        var shape = new BatchShape(BatchLayout.PACKED, 96, 32, 3);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, NumberedSequences.of(32, 32, 20))) {
            assertTrue(packer.fill(batch));
            assertEquals(3, batch.microBatches());
            assertFalse(packer.fill(batch));
        }
        try (var packer = new SequencePacker(shape, NumberedSequences.of(32, 20))) {
            assertTrue(packer.fill(batch));
            assertEquals(2, batch.microBatches());
            assertEquals(52, batch.tokens());
            assertThrows(IndexOutOfBoundsException.class, () -> batch.microBatch(2));
            assertFalse(packer.fill(batch));
            assertEquals(0, batch.microBatches());
            assertEquals(0, batch.paddedTokens());
        }
    }

    @Test
    void withoutLabelsAllMicroBatchesCountAlike() {
        var shape = new BatchShape(BatchLayout.PACKED, 32, 16, 2);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, NumberedSequences.of(16, 14))) {
            assertTrue(packer.fill(batch));
        }
        // Of number 0 the places 0, 5, 10 and 15, of number 1 the places 4 and 9.
        assertEquals(4 / 6.0, batch.share(0));
        assertEquals(2 / 6.0, batch.share(1));
        NumberedSequences unlabelled = NumberedSequences.of(1, 1, 1, 1, 1);
        assertTrue(unlabelled.advance(), "number 0, which has a label, is left out");
        var small = new BatchShape(BatchLayout.PADDED, 32, 16, 2);
        var none = new Batch(small);
        try (var packer = new SequencePacker(small, unlabelled)) {
            assertTrue(packer.fill(none));
        }
        assertEquals(0, none.labelled());
        assertEquals(0.5, none.share(0));
    }

    @Test
    void aSequenceThatFillsTheBudgetNeedsNoPadding() {
        var shape = new BatchShape(BatchLayout.PACKED, 32, 32);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, NumberedSequences.of(40))) {
            assertTrue(packer.fill(batch));
        }
        MicroBatch only = batch.microBatch(0);
        assertEquals(
                "1 1 32 32",
                only.sequences() + " " + only.realSequences() + " " + only.tokens() + " " + only.paddedTokens());
    }

    @Test
    void refusesBatchesAndSequencesThatCannotWork() {
        var shape = new BatchShape(BatchLayout.PACKED, 32, 32);
        var other = new BatchShape(BatchLayout.PACKED, 48, 32);
        var packer = new SequencePacker(shape, NumberedSequences.of(1, 0));
        assertEquals(
                "batch: expected one made for " + shape + ", got " + other,
                assertThrows(IllegalArgumentException.class, () -> packer.fill(new Batch(other)))
                        .getMessage());
        assertEquals(
                "sequences: expected at least 1 token in each, got 0",
                assertThrows(IllegalStateException.class, () -> packer.fill(new Batch(shape)))
                        .getMessage());
    }
}
