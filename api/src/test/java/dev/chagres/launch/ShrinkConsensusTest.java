package dev.chagres.launch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.launch.ShrinkDecision.Proposal;
import dev.chagres.launch.ShrinkRounds.ShrinkConsensus;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.TreeSet;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Who goes on when some ranks have ended, and others are silent. */
@Tag("L0")
class ShrinkConsensusTest {
    private static final long END = 1000;
    private static final byte[] ID = {7};

    private static Proposal says(List<Integer> members, List<Integer> missed, long value) {
        return new Proposal(1, members, missed, "it is ill", value, 5);
    }

    @Test
    void whoCameGoesOnWhenTheOthersHaveEnded() {
        List<Integer> all = List.of(0, 1, 2, 3);
        ShrinkConsensus accord = new ShrinkConsensus(0, END);
        accord.come(2, says(all, List.of(), 6));
        assertNull(accord.decide(all, Set.of(1), 0, ID));
        accord.come(0, says(all, List.of(), 5));
        assertNull(accord.decide(all, Set.of(1), 0, ID));
        ShrinkDecision decision = accord.decide(all, Set.of(1, 3), 0, ID);
        assertNotNull(decision);
        assertEquals(Map.of(0, 5L, 2, 6L), decision.left());
        assertEquals("", decision.refusal());
        assertArrayEquals(ID, decision.shared());
    }

    @Test
    void theRankWithTheShortestTimeoutDecidesHowLongToWait() {
        List<Integer> all = List.of(0, 1, 2);
        ShrinkConsensus accord = new ShrinkConsensus(0, 1000 * END);
        accord.come(1, says(all, List.of(), 6));
        accord.waitUntil(END);
        accord.waitUntil(2 * END);
        accord.come(0, says(all, List.of(), 6));
        assertNull(accord.decide(all, Set.of(), END - 1, ID));
        ShrinkDecision decision = accord.decide(all, Set.of(), END, ID);
        assertNotNull(decision);
        assertEquals(Set.of(0, 1), decision.left().keySet());
    }

    @Test
    void oneThatWasMissedIsNotWaitedForAndDoesNotComeBack() {
        List<Integer> all = List.of(0, 1, 2);
        ShrinkConsensus accord = new ShrinkConsensus(0, END);
        accord.come(1, says(all, List.of(2), 6));
        accord.come(2, says(all, List.of(1), 7));
        accord.come(0, says(all, List.of(), 6));
        ShrinkDecision decision = accord.decide(all, Set.of(), 0, ID);
        assertNotNull(decision);
        assertEquals(Set.of(0, 1), decision.left().keySet());
    }

    /** What they had said before they went on and ended is read when the keeper has come already. */
    @Test
    void aKeeperThatWasStoppedDoesNotGoOnWithoutThoseThatMissedIt() {
        List<Integer> all = List.of(0, 1, 2);
        ShrinkConsensus accord = new ShrinkConsensus(0, END);
        accord.come(0, says(all, List.of(), 6));
        accord.come(1, says(all, List.of(0), 6));
        assertNull(accord.decide(all, Set.of(), 0, ID));
        accord.come(2, says(all, List.of(0), 6));
        ShrinkDecision decision = accord.decide(all, Set.of(1, 2), 0, ID);
        assertNotNull(decision);
        assertEquals(
                "ranks 1, 2 missed rank 0 before it came, and may have gone on without it; start again from a saved state",
                decision.refusal());
    }

    @Test
    void thoseThatMissedAKeeperAndAreStillThereGoOnWithIt() {
        List<Integer> all = List.of(0, 1, 2);
        ShrinkConsensus accord = new ShrinkConsensus(0, END);
        accord.come(0, says(all, List.of(), 6));
        accord.come(1, says(all, List.of(0), 6));
        ShrinkDecision decision = accord.decide(all, Set.of(2), 0, ID);
        assertNotNull(decision);
        assertEquals(Set.of(0, 1), decision.left().keySet());
    }

    @Test
    void withoutTheRankThatKeepsTheStoreNothingIsDecided() {
        List<Integer> all = List.of(0, 1);
        ShrinkConsensus accord = new ShrinkConsensus(0, END);
        accord.come(1, says(all, List.of(), 6));
        assertFalse(accord.isAbandoned(Set.of(), END));
        assertTrue(accord.isAbandoned(Set.of(), END + 1));
        assertTrue(accord.isAbandoned(Set.of(0), 0));
        assertNull(accord.decide(all, Set.of(), END + 1, ID));
    }

    @Test
    void fewerThanHalfOfThoseThatLiveDoNotGoOn() {
        List<Integer> all = List.of(0, 1, 2, 3, 4);
        ShrinkConsensus accord = new ShrinkConsensus(3, END);
        accord.come(3, says(all, List.of(0, 1), 6));
        accord.come(4, says(all, List.of(), 6));
        ShrinkDecision decision = accord.decide(all, Set.of(2), END + 1, ID);
        assertNotNull(decision);
        assertEquals(
                "ranks 0, 1 neither came nor ended, and may go on without ranks 3, 4: expected more than half of the ranks"
                        + " that live, or half of them with rank 0; start again from a saved state",
                decision.refusal());
        assertEquals(Map.of(), decision.left());
    }

    /** Ranks are parted into two groups by a network that has failed; of those that have ended a group knows of some. */
    @Test
    void twoGroupsNeverBothGoOn() {
        long seed = Long.getLong("chagres.test.seed", new Random().nextLong());
        System.out.println("chagres.test.seed=" + seed);
        SplittableRandom random = new SplittableRandom(seed);
        int went = 0;
        for (int i = 0; i < 20_000; i++) {
            int ranks = random.nextInt(2, 9);
            List<Integer> all = new ArrayList<>();
            List<TreeSet<Integer>> groups = List.of(new TreeSet<>(), new TreeSet<>());
            TreeSet<Integer> ended = new TreeSet<>();
            for (int rank = 0; rank < ranks; rank++) {
                all.add(rank);
                int where = random.nextInt(5);
                (where == 4 ? ended : groups.get(where % 2)).add(rank);
            }
            int goOn = 0;
            for (TreeSet<Integer> group : groups) {
                if (!group.isEmpty()) {
                    Set<Integer> known = new TreeSet<>(ended);
                    known.removeIf(_ -> random.nextInt(3) == 0);
                    ShrinkConsensus accord = new ShrinkConsensus(group.first(), END);
                    group.forEach(rank -> accord.come(rank, says(all, List.of(), 1)));
                    ShrinkDecision decision = accord.decide(all, known, END + 1, ID);
                    assertNotNull(decision);
                    goOn += decision.refusal().isEmpty() ? 1 : 0;
                }
            }
            assertTrue(goOn <= 1, groups + " without " + ended);
            went += goOn;
        }
        assertTrue(went > 5_000, went + " went on");
    }

    @Test
    void aFailureThatLedToADecisionIsNotToldAgain() {
        try (PeerStatus news = new PeerStatus(1, 3)) {
            StoreMessages.Told early = news.telling("as rank 0 says: rank 2 failed");
            assertTrue(news.failed(-1, early));
            news.decided(new ShrinkDecision(new TreeMap<>(Map.of(0, 4L, 1, 4L)), new byte[0], ""));
            assertNull(news.failure());
            assertFalse(news.failed(-1, early), "it is what was decided about");
            assertFalse(news.failed(2, news.telling("ended")), "it is left out");
            assertTrue(news.failed(0, news.telling("ended")));
        }
    }

    @Test
    void aFailureTravels() throws IOException {
        StoreMessages.Told told = new StoreMessages.Told(3, "it is ill: \u00e4");
        var message = new StoreMessages.Message(StoreMessages.Kind.FAILED, 1, told.toBytes());
        assertEquals(told, StoreMessages.Told.of(message));
        var wrong = new StoreMessages.Message(StoreMessages.Kind.FAILED, 1, new byte[3]);
        assertThrows(IOException.class, () -> StoreMessages.Told.of(wrong));
    }

    @Test
    void whatIsSaidTravels() throws IOException {
        Proposal proposal = new Proposal(3, List.of(0, 5, 2), List.of(5), "it waited", -1, 2500);
        assertEquals(proposal, Proposal.of(proposal.toBytes(), 5, 6));
        ShrinkDecision made = new ShrinkDecision(new TreeMap<>(Map.of(4, 9L, 1, -1L)), ID, "");
        ShrinkDecision read = ShrinkDecision.of(made.toBytes(), 6);
        assertEquals(made.left(), read.left());
        assertArrayEquals(made.shared(), read.shared());
        assertEquals(
                "none",
                ShrinkDecision.of(ShrinkDecision.refused("none").toBytes(), 6).refusal());
    }
}
