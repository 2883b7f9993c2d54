package dev.chagres.launch;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.StoppedClock;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranks as threads: results, a rank that throws, one that never comes. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class RanksTest {
    private static final CommunicatorConfig SHORT =
            CommunicatorConfig.standard().withTimeout(Duration.ofMillis(400));

    private final StoppedClock clock = new StoppedClock();

    @AfterEach
    void goOn() {
        clock.close();
    }

    private static void sum(Rank rank) {
        try (Scope scope = rank.device().openScope()) {
            Tensor tensor = scope.tensor(DType.FLOAT32, 4);
            tensor.zero(rank.device().stream());
            rank.communicator().allReduce(tensor, tensor, Reduction.SUM, rank.device().stream());
            rank.communicator().synchronize(rank.device().stream());
        }
    }

    @Test
    void resultsComeInTheOrderOfRanks() {
        DevicesNeeded.assume(3);
        assertEquals(
                List.of("0 of 3 on device 0", "1 of 3 on device 1", "2 of 3 on device 2"),
                Ranks.local(3).run(rank -> rank.index() + " of " + rank.count() + " on " + rank.device()));
        assertEquals(3, Ranks.local(3).count());
        assertEquals("3 ranks of this process", Ranks.local(3).toString());
    }

    /** A failure that cannot be told is one nevertheless: nobody waits for its rank. */
    @Test
    void aFailureWhoseTextFailsReleasesTheOthers() {
        DevicesNeeded.assume(2);
        var failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    sum(rank);
                    if (rank.index() == 1) {
                        throw new Untold();
                    }
                    sum(rank);
                }));
        assertEquals(List.of(1), failure.ranks());
        assertEquals("rank 1 of 2 failed: " + Untold.class.getName(), failure.getMessage());
    }

    private static final class Untold extends RuntimeException {
        private static final long serialVersionUID = 1;

        @Override
        public String toString() {
            throw new AssertionError("no text");
        }
    }

    @Test
    void aRankThatThrowsIsNamedAndReleasesTheOthers() {
        DevicesNeeded.assume(4);
        IllegalStateException cause = new IllegalStateException("boom");
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(4).each(rank -> {
                    sum(rank);
                    if (rank.index() == 2) {
                        Thread.sleep(50);
                        throw cause;
                    }
                    sum(rank);
                }));
        assertEquals("rank 2 of 4 failed: java.lang.IllegalStateException: boom", failure.getMessage());
        assertNull(failure.collective());
        assertNull(failure.waited());
        assertEquals(List.of(2), failure.ranks());
        assertSame(cause, failure.getCause());
        assertEquals(0, failure.getSuppressed().length);
    }

    /** An exception that cannot say what it is. */
    private static final class Speechless extends RuntimeException {
        private static final long serialVersionUID = 1;

        @Override
        public String toString() {
            throw new IllegalStateException("no words");
        }
    }

    @Test
    void aRankMayThrowWhatCannotSayWhatItIs() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    if (rank.index() == 1) {
                        throw new Speechless();
                    }
                    sum(rank);
                }));
        assertEquals("rank 1 of 2 failed: " + Speechless.class.getName(), failure.getMessage());
    }

    @Test
    void theOthersHearWhichRankFailed() {
        DevicesNeeded.assume(2);
        CountDownLatch thrown = new CountDownLatch(1);
        String[] heard = new String[1];
        assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    if (rank.index() == 1) {
                        throw new IllegalArgumentException("no such shard");
                    }
                    try {
                        sum(rank);
                    } catch (RankFailedException failure) {
                        heard[0] = failure.getMessage();
                        thrown.countDown();
                        throw failure;
                    }
                }));
        assertEquals(0, thrown.getCount());
        assertTrue(
                heard[0].matches(
                        "communicator \"world\", rank 0 of 2(, in allReduce of 4 FLOAT32, SUM waited \\d+ ms)?: rank 1"
                                + " failed: java.lang.IllegalArgumentException: no such shard"),
                heard[0]);
    }

    @Test
    void aRankThatNeverComesIsNamed() {
        DevicesNeeded.assume(3);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(3).withConfig(SHORT.withName("data")).each(rank -> {
                    sum(rank);
                    if (rank.index() == 1) {
                        clock.pass();
                        Thread.sleep(Duration.ofDays(1)); // It is interrupted when the others have failed.
                    } else {
                        sum(rank);
                    }
                }));
        String text = failure.getMessage();
        assertTrue(
                text.matches(
                        "communicator \"data\", rank [02] of 3, in allReduce of 4 FLOAT32, SUM waited 400 ms: rank 1"
                                + " did not come"),
                text);
        assertEquals(List.of(1), failure.ranks());
        assertEquals("allReduce of 4 FLOAT32, SUM", failure.collective());
        assertEquals(Duration.ofMillis(400), failure.waited());
    }

    @Test
    void aRankThatNeverSendsIsNamed() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).withConfig(SHORT).each(rank -> {
                    if (rank.index() == 1) {
                        clock.pass();
                        Thread.sleep(Duration.ofDays(1));
                    }
                    try (Scope scope = rank.device().openScope()) {
                        rank.communicator().receive(scope.tensor(DType.BYTE, 5), 1, rank.device().stream());
                    }
                }));
        assertEquals(
                "communicator \"world\", rank 0 of 2, in receive of 5 BYTE from rank 1 waited 400 ms: rank 1 did not come",
                failure.getMessage());
    }

    @Test
    void ranksRunAgainAfterAFailure() {
        DevicesNeeded.assume(2);
        assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    throw new IllegalStateException("rank " + rank.index());
                }));
        Ranks.local(2).each(RanksTest::sum);
    }

    @Test
    void misuse() {
        int devices = Device.count();
        assertThrown(
                IllegalArgumentException.class,
                "count: expected 1 to " + devices
                        + " ranks, for each needs a device of its own, got 0; on the reference"
                        + " CHAGRES_REFERENCE_DEVICES says how many there are",
                () -> Ranks.local(0));
        assertThrows(IllegalArgumentException.class, () -> Ranks.local(devices + 1));
        assertThrown(
                NullPointerException.class,
                "body: expected a value, got null",
                () -> Ranks.local(1).run(null));
        assertThrown(
                NullPointerException.class,
                "newConfig: expected a value, got null",
                () -> Ranks.local(1).withConfig(null));
    }
}
