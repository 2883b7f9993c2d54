package dev.chagres.attention;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Stretches of packed sequences: their lengths, their positions, their keys. */
@Tag("L0")
@Tag("L1")
class PackedChunkTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static int[] ints(Tensor tensor) {
        return tensor.toInts(open.stream());
    }

    private static void check(long begin, long end, int[] offsets, int[] starts) {
        Sequences part = PackedChunk.of(open.scope(), begin, end, 3, 0, 6, 2);
        assertArrayEquals(offsets, ints(part.cuSeqlens().offsets()));
        assertArrayEquals(starts, ints(Objects.requireNonNull(part.startPositions())));
        assertArrayEquals(
                new int[] {0, 3, 3, 9, 11}, ints(part.keys().cuSeqlens().offsets()));
        assertEquals(begin, part.part());
        assertEquals(end - begin, part.tokens());
    }

    @Test
    void haveWhatTheStretchHasOfEachSequence() {
        check(0, 11, new int[] {0, 3, 3, 9, 11}, new int[] {0, 0, 0, 0});
        check(0, 2, new int[] {0, 2, 2, 2, 2}, new int[] {0, 0, 0, 0});
        check(2, 5, new int[] {0, 1, 1, 3, 3}, new int[] {2, 0, 0, 0});
        check(5, 7, new int[] {0, 0, 0, 2, 2}, new int[] {0, 0, 2, 0});
        check(8, 11, new int[] {0, 0, 0, 1, 3}, new int[] {0, 0, 5, 0});
        assertEquals(-1, Sequences.packed(open.scope(), 3, 4).part());
    }

    @Test
    void refusals() {
        String text = "begin, end: expected a stretch of the 7 tokens that the sequences have, got ";
        for (long[] stretch : new long[][] {{-1, 2}, {3, 3}, {4, 2}, {5, 8}}) {
            assertThrown(
                    IllegalArgumentException.class,
                    text + stretch[0] + " and " + stretch[1],
                    () -> PackedChunk.of(open.scope(), stretch[0], stretch[1], 3, 4));
        }
    }

    @Test
    void aCutThatWasRefusedIsOfNoSequences() {
        Sequences sequences = Sequences.packed(open.scope(), 3, 4);
        try (PackedChunks cut = new PackedChunks(open.device())) {
            cut.set(sequences, 0, 2, open.scope());
            assertTrue(cut.isOf(sequences));
            assertThrown(
                    IllegalArgumentException.class,
                    "begin, end: expected a stretch of the 7 tokens that the sequences have, got 7 and 7",
                    () -> cut.set(sequences, 7, 7, open.scope()));
            assertFalse(cut.isOf(sequences));
        }
    }
}
