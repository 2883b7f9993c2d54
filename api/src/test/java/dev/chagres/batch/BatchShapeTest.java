package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class BatchShapeTest {
    @Test
    void microBatchesShareTheTokensOfTheStep() {
        var packed = new BatchShape(BatchLayout.PACKED, 1024, 64, 4);
        assertEquals(256, packed.tokensPerMicroBatch());
        assertEquals(256, packed.maxSequences());
        var padded = new BatchShape(BatchLayout.PADDED, 1024, 64, 2);
        assertEquals(8, padded.maxSequences());
        assertEquals(1, new BatchShape(BatchLayout.PACKED, 1024, 64).microBatches());
    }

    @Test
    void refusesSizesThatCannotWork() {
        assertMessage("context: expected at least 1 token, got 0", () -> new BatchShape(BatchLayout.PACKED, 16, 0));
        assertMessage("microBatches: expected at least 1, got 0", () -> new BatchShape(BatchLayout.PACKED, 16, 16, 0));
        assertMessage(
                "tokensPerStep: expected a positive multiple of 16, got 24",
                () -> new BatchShape(BatchLayout.PACKED, 24, 16));
        assertMessage(
                "tokensPerStep, microBatches: expected a positive multiple of 16 tokens for each of 3 micro-batches, 48"
                        + " in all, got 64",
                () -> new BatchShape(BatchLayout.PACKED, 64, 16, 3));
        assertMessage(
                "tokensPerStep, microBatches: expected a positive multiple of 16 tokens for each of 2147483647"
                        + " micro-batches, 34359738352 in all, got 64",
                () -> new BatchShape(BatchLayout.PACKED, 64, 16, Integer.MAX_VALUE));
        assertMessage(
                "tokensPerStep: expected at least the context, 64, so that the longest sequence fits; got 32",
                () -> new BatchShape(BatchLayout.PACKED, 32, 64));
        assertMessage(
                "tokensPerStep, microBatches: expected at least the context, 64, in each micro-batch, so that the longest"
                        + " sequence fits; got 128 tokens in 4, 32 each",
                () -> new BatchShape(BatchLayout.PACKED, 128, 64, 4));
        assertMessage(
                "context: expected a multiple of 16 without packing, got 20",
                () -> new BatchShape(BatchLayout.PADDED, 32, 20));
        assertThrows(NullPointerException.class, () -> new BatchShape(null, 32, 32));
    }

    private static void assertMessage(String message, org.junit.jupiter.api.function.Executable action) {
        assertEquals(
                message, assertThrows(IllegalArgumentException.class, action).getMessage());
    }
}
