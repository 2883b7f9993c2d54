package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.MicroBatch;
import dev.chagres.batch.SequencePacker;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.trainer.PlannedBatch.SyntheticSequences;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
class PlannedBatchTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 16_384, 1_024);

    private static SequencePacker shipped() {
        return shipped(1);
    }

    private static SequencePacker shipped(long seed) {
        return new SequencePacker(
                SHAPE, new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), seed, 1 << 20)));
    }

    private static int roundedSequences(int sequences) {
        int power = 32;
        while (power < sequences) {
            power *= 2;
        }
        return power;
    }

    private static PlannedBatch planOf(MicroBatch batch) {
        int[] offsets = batch.cuSeqlens();
        int longest = IntStream.range(0, batch.realSequences())
                .map(i -> offsets[i + 1] - offsets[i])
                .max()
                .orElseThrow();
        return new PlannedBatch((longest + 127) / 128 * 128, roundedSequences(batch.realSequences()));
    }

    /** What the first batch tells of the shipped sequences is enough for nearly all that follow. */
    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3, 4, 5})
    void plansThatStepsWillAskForAreAmongThem(long seed) {
        var batch = new Batch(SHAPE);
        try (var packer = shipped(seed)) {
            assertTrue(packer.fill(batch));
            Set<PlannedBatch> planned = new HashSet<>(PlannedBatch.of(
                    IntStream.rangeClosed(1, 8).map(i -> 128 * i).toArray(), SHAPE, batch.microBatch(0)));
            assertTrue(planned.size() >= 8 && planned.size() <= 24, planned.toString());
            int missed = 0;
            for (int step = 0; step < 200; step++) {
                assertTrue(packer.fill(batch));
                missed += planned.contains(planOf(batch.microBatch(0))) ? 0 : 1;
            }
            assertTrue(missed <= 2, missed + " of 200 steps have another plan than " + planned);
        }
    }

    /** The batch that is made up for a plan has that plan. */
    @Test
    void aMadeUpBatchHasItsPlan() {
        var madeUp = new Batch(SHAPE);
        for (int longest = 128; longest <= 1_024; longest += 128) {
            for (int sequences : new int[] {32, 64, 128}) {
                int tokens = 16_000;
                if (sequences * longest >= tokens) {
                    new SequencePacker(SHAPE, new SyntheticSequences(tokens, sequences, longest)).fill(madeUp);
                    assertEquals(new PlannedBatch(longest, sequences), planOf(madeUp.microBatch(0)));
                }
            }
        }
    }

    /** The reference has no plans: one batch is enough. */
    @Test
    void theReferenceHasOne() {
        var batch = new Batch(SHAPE);
        try (Device device = Device.open();
                var packer = shipped()) {
            assertTrue(packer.fill(batch));
            List<PlannedBatch> plans = PlannedBatch.of(device, DType.BFLOAT16, SHAPE, batch.microBatch(0));
            assertEquals(device.provider() == Provider.REFERENCE, plans.size() == 1, plans.toString());
        }
    }
}
