package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.launch.Ranks;
import dev.chagres.parallel.ContextParallel;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Each context-parallel rank uploads its tokens; their shares add up to those of the micro-batches. */
@Tag("L0")
@Tag("L2")
class UploadOfPartsTest {
    private static final int STEPS = 6;

    @ParameterizedTest
    @CsvSource({"PACKED, 1, 2", "PACKED, 2, 3", "PADDED, 1, 4", "PADDED, 3, 2"})
    void ranksGetStretchesOfTheTokens(BatchLayout layout, int microBatches, int count) {
        DevicesNeeded.assume(count);
        var shape = new BatchShape(layout, 128 * microBatches, 32, microBatches);
        List<double[]> shares = Ranks.local(count).run(rank -> {
            ContextParallel tokens = ContextParallel.of(rank.communicator());
            var batch = new Batch(shape);
            double[] own = new double[STEPS * microBatches];
            try (var packer = new SequencePacker(shape, NumberedSequences.drawn(3, 40));
                    var ring = UploadRing.ofPart(rank.device(), shape, 2, tokens);
                    Scope scope = rank.device().openScope()) {
                for (int step = 0; step < STEPS; step++) {
                    assertTrue(packer.fill(batch));
                    ring.upload(batch);
                    for (int i = 0; i < microBatches; i++) {
                        MicroBatch whole = batch.microBatch(i);
                        scope.restart();
                        ModelInput input = ring.next(scope);
                        int first = (int) tokens.begin(whole.paddedTokens(), tokens.rank());
                        int end = (int) tokens.begin(whole.paddedTokens(), tokens.rank() + 1);
                        int[] labels = Arrays.copyOfRange(whole.labels(), first, end);
                        assertArrayEquals(
                                Arrays.copyOfRange(whole.ids(), first, end),
                                input.ids().toInts(scope.stream()));
                        assertArrayEquals(labels, input.labels().toInts(scope.stream()));
                        assertEquals(whole.paddedTokens(), input.sequences().tokens());
                        long labelled = Arrays.stream(labels)
                                .filter(label -> label != Batch.IGNORED)
                                .count();
                        assertEquals((double) labelled / batch.labelled(), input.share());
                        own[step * microBatches + i] = input.share();
                    }
                }
            }
            return own;
        });
        for (int step = 0; step < STEPS; step++) {
            double sum = 0;
            for (double[] own : shares) {
                for (int i = 0; i < microBatches; i++) {
                    sum += own[step * microBatches + i];
                }
            }
            assertEquals(1, sum, 1e-12);
        }
    }
}
