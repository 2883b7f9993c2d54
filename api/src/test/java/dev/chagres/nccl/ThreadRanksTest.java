package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Waits whose time is up at once, in a communicator and in one that was split from it. */
@Tag("L0")
class ThreadRanksTest {
    private static final long TIMEOUT_MILLIS = 20;
    private static final Duration HANGS = Duration.ofSeconds(30);

    @Test
    void waitsThatEndAtOnceInBothDoNotHoldEachOther() throws InterruptedException {
        ThreadRanks world = new ThreadRanks(3);
        for (int rank = 0; rank < 3; rank++) {
            world.descendants.say(1, rank, rank / 2, 0);
        }
        ThreadRanks pair = world.descendants.split(1, 0);
        CyclicBarrier bothLate = new CyclicBarrier(2);
        AtomicReference<Throwable> inWorld = new AtomicReference<>();
        AtomicReference<Throwable> inPair = new AtomicReference<>();
        Thread first = start(world, "world", bothLate, inWorld);
        Thread second = start(pair, "pair", bothLate, inPair);
        assertTrue(first.join(HANGS) && second.join(HANGS), "each waits for the other's lock");

        RankFailedException one = assertInstanceOf(RankFailedException.class, inWorld.get());
        RankFailedException other = assertInstanceOf(RankFailedException.class, inPair.get());
        assertEquals(List.of(0), one.ranks());
        assertEquals(one.getMessage(), other.getMessage());
        assertTrue(
                one.getMessage().matches("(world|pair), in test waited 20 ms: rank 0 did not come"), one.getMessage());
    }

    /** Waits for what never is; both have found that the time is up before either tells the ranks. */
    private static Thread start(
            ThreadRanks meeting, String name, CyclicBarrier bothLate, AtomicReference<Throwable> thrown) {
        return Thread.ofPlatform().daemon().name("meets-in-" + name).start(() -> {
            try (var _ = meeting.lock.hold()) {
                meeting.await(
                        0,
                        () -> false,
                        TIMEOUT_MILLIS,
                        Called.in(name, "test"),
                        () -> {
                            await(bothLate);
                            return List.of(0);
                        },
                        FailureAttribution::only);
            } catch (Throwable failure) {
                thrown.set(failure);
            }
        });
    }

    private static void await(CyclicBarrier barrier) {
        try {
            barrier.await(30, TimeUnit.SECONDS);
        } catch (Exception failure) {
            throw new AssertionError("the other wait has not ended", failure);
        }
    }
}
