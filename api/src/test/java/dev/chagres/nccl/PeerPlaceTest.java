package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Communicators of processes that fail together. */
@Tag("L0")
class PeerPlaceTest {
    private final PeerPlace all = PeerPlace.ofAll(new ProcessRanks(), 4);

    @Test
    void whatIsSplitFailsWithWhatItIsSplitFrom() {
        PeerPlace part = all.split(3, 1, false);
        assertEquals(all.family(), part.family());
        assertEquals(all.family(), part.split(0, 0, true).family());
    }

    @Test
    void whatIsShrunkDoesNot() {
        PeerPlace left = all.shrunk(1, 2);
        assertNotEquals(all.family(), left.family());
        assertEquals(left.family(), left.split(5, 0, true).family());
        assertNotEquals(left.family(), left.shrunk(1, 0).family());
        PeerPlace part = all.split(3, 1, false);
        assertNotEquals(part.family(), part.shrunk(1, 0).family());
    }

    @Test
    void communicatorsOfOtherPeersDoNot() {
        assertNotEquals(all.family(), PeerPlace.ofAll(new ProcessRanks(), 4).family());
    }
}
