package dev.chagres.models.data;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.SequencePacker;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class MaskedProteinsTest {
    private static SequencePacker packer(BatchShape shape, String text, long seed) {
        return new SequencePacker(shape, new MaskedProteins(new ShuffledSequences(Fasta.source(text), seed, 1 << 20)));
    }

    /** Returns each real sequence of a batch as its ids and labels. */
    private static List<String> contents(Batch batch) {
        var contents = new ArrayList<String>();
        for (int part = 0; part < batch.microBatches(); part++) {
            MicroBatch one = batch.microBatch(part);
            for (int i = 0; i < one.realSequences(); i++) {
                int length = one.cuSeqlens()[i + 1] - one.cuSeqlens()[i];
                int start = batch.shape().layout() == BatchLayout.PACKED
                        ? one.cuSeqlens()[i]
                        : i * batch.shape().context();
                checkSequence(one, start, length);
                contents.add(Arrays.toString(Arrays.copyOfRange(one.ids(), start, start + length))
                        + Arrays.toString(Arrays.copyOfRange(one.labels(), start, start + length)));
            }
        }
        return contents;
    }

    private static void checkSequence(MicroBatch batch, int start, int length) {
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
    }

    @Test
    void layoutsAndBudgetsCoverTheSameSequencesWithTheSameMasks() {
        String text = Fasta.drawn(new Random(3), 100, 90);
        var shapes = List.of(
                new BatchShape(BatchLayout.PACKED, 64, 64),
                new BatchShape(BatchLayout.PACKED, 512, 64),
                new BatchShape(BatchLayout.PACKED, 512, 64, 4),
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
    void paddingIsTheVocabularysOwn() {
        var shape = new BatchShape(BatchLayout.PACKED, 32, 32);
        var batch = new Batch(shape);
        try (SequencePacker packer = packer(shape, ">\n" + "A".repeat(18) + "\n", 1)) {
            assertTrue(packer.fill(batch));
        }
        MicroBatch only = batch.microBatch(0);
        assertEquals("20 32", only.tokens() + " " + only.paddedTokens());
        assertEquals(EsmVocabulary.PAD, only.ids()[20]);
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
                MicroBatch only = batch.microBatch(0);
                int place = 1;
                while (only.ids()[place] == EsmVocabulary.MASK || only.labels()[place] != Batch.IGNORED) {
                    place++;
                }
                if (place < 11) {
                    starts[only.ids()[place] - EsmVocabulary.FIRST_RESIDUE - (place - 1)]++;
                }
            }
        }
        for (int hits : starts) {
            assertTrue(hits > 100, Arrays.toString(starts));
        }
    }
}
