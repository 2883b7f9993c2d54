package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.SequencePacker;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.trainer.PlannedBatch.SyntheticSequences;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
class SyntheticSequencesTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 2048, 1024);

    @ParameterizedTest
    @ValueSource(ints = {1, 16, 128, 256, 500, 896, 1024})
    void aMadeUpBatchIsAsLargeAsOneOfTheDataAndHasTheLongestLength(int longest) {
        var example = new Batch(SHAPE);
        try (var packer = new SequencePacker(
                SHAPE, new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 1, 1 << 20)))) {
            for (int i = 0; i < 20; i++) {
                assertTrue(packer.fill(example));
                check(example.microBatch(0), longest);
            }
        }
    }

    private static void check(MicroBatch example, int longest) {
        var madeUp = new Batch(SHAPE);
        new SequencePacker(SHAPE, new SyntheticSequences(example.tokens(), example.realSequences(), longest))
                .fill(madeUp);
        MicroBatch batch = madeUp.microBatch(0);
        int[] cu = batch.cuSeqlens();
        int most = 0;
        for (int i = 0; i < batch.realSequences(); i++) {
            most = Math.max(most, cu[i + 1] - cu[i]);
        }
        assertEquals(longest, most);
        assertTrue(batch.tokens() >= example.tokens() - longest && batch.tokens() <= 2048, batch.tokens() + " tokens");
        assertTrue(
                batch.realSequences() >= Math.min(example.realSequences(), batch.tokens() / longest),
                batch.realSequences() + " sequences");
        assertEquals(batch.realSequences(), batch.labelled());
    }
}
