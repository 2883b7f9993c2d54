package dev.chagres.attention;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.Scope;
import dev.chagres.attention.RingSequences.Order;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** What does not cut packed sequences up. */
@Tag("L0")
class RingSequencesTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static void refused(RingSequences cut, String text, long[] bounds, int... own) {
        Sequences sequences = Sequences.packed(open.scope(), 5, 0, 4);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> cut.set(sequences, bounds, own, Order.CAUSAL, open.scope()));
    }

    @Test
    void chunksThatDoNotCoverTheTokens() {
        String expected = "bounds: expected 0, then numbers that increase up to the 9 tokens, got ";
        try (RingSequences cut = new RingSequences(open.device())) {
            refused(cut, expected + "[]", new long[] {});
            refused(cut, expected + "[9]", new long[] {9}, 0);
            refused(cut, expected + "[1, 9]", new long[] {1, 9}, 0);
            refused(cut, expected + "[0, 5, 5, 9]", new long[] {0, 5, 5, 9}, 0);
            refused(cut, expected + "[0, 4, 10]", new long[] {0, 4, 10}, 0);
            refused(cut, "own: expected numbers of chunks, 0 to 1, got [0, 2]", new long[] {0, 4, 9}, 0, 2);
            refused(cut, "own: expected numbers of chunks, 0 to 1, got [-1]", new long[] {0, 4, 9}, -1);
        }
    }

    /** Blocks of more chunks are kept for the next time, and are none of these. */
    @Test
    void blocksOfEarlierChunksAreNotThere() {
        try (RingSequences cut = new RingSequences(open.device());
                Scope scope = open.device().openScope()) {
            Sequences sequences = Sequences.packed(scope, 9);
            cut.set(sequences, new long[] {0, 3, 6, 9}, new int[] {2}, Order.CAUSAL, scope);
            assertEquals(3, cut.blocks());
            cut.set(sequences, new long[] {0, 9}, new int[] {0}, Order.CAUSAL, scope);
            assertEquals(1, cut.blocks());
            assertEquals(0, cut.block(0).index());
            String text = "index: expected one of 1 blocks, got ";
            assertThrown(IndexOutOfBoundsException.class, text + 1, () -> cut.block(1));
            assertThrown(IndexOutOfBoundsException.class, text + -1, () -> cut.block(-1));
        }
    }
}
