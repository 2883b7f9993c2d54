package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.parameter.ModelPlan;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What a trainer is told of a model and of a batch. */
@Tag("L0")
class TrainedModelTest {
    /** Three tokens, the first without a label. */
    private static final class Three implements TokenSequences {
        private boolean given;

        @Override
        public boolean advance() {
            boolean first = !given;
            given = true;
            return first;
        }

        @Override
        public int length() {
            return 3;
        }

        @Override
        public int write(int[] ids, int[] labels, int start, int count) {
            labels[start] = Batch.IGNORED;
            return count - 1;
        }
    }

    @Test
    void aBatchOfOneRankHasItsShareOfTheStep() {
        var shape = new BatchShape(BatchLayout.PACKED, 16, 16);
        var batch = new Batch(shape);
        try (var packer = new SequencePacker(shape, new Three())) {
            assertTrue(packer.fill(batch));
            assertEquals(1, batch.share(0));
            batch.partOf(8);
            assertEquals(0.25, batch.share(0));
            assertEquals(
                    "labelled: expected at least the 2 of this batch, and 1, got 1",
                    assertThrows(IllegalArgumentException.class, () -> batch.partOf(1))
                            .getMessage());
            packer.fill(batch);
            assertEquals(
                    "labelled: expected at least the 0 of this batch, and 1, got 0",
                    assertThrows(IllegalArgumentException.class, () -> batch.partOf(0))
                            .getMessage());
        }
        try (var packer = new SequencePacker(shape, new Three())) {
            packer.fill(batch);
            assertEquals(1, batch.share(0), "until the batch is filled again");
        }
    }

    @Test
    void partsHaveLayersAndColumns() {
        assertEquals(
                "layers: expected at least one, got none",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> new LayeredModel.Parts(List.of(), List.of(), List.of(), 8))
                        .getMessage());
        assertEquals(
                "columns: expected at least 1, got 0",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> new LayeredModel.Parts(List.of(), List.of(List.of()), List.of(), 0))
                        .getMessage());
    }

    @Test
    void aModelIsNotDividedUnlessItsFactorySaysHow() {
        TrainedModel.Factory factory = (device, plan, memory) -> {
            throw new AssertionError("nothing is made here");
        };
        assertTrue(factory.parts(new ModelPlan()).isEmpty());
    }
}
