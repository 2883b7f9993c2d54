package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.memory.HostWaits;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Ranks that are threads and wait for their device, on which NCCL waits for a rank that does not come. The reference computes before it
 * returns; there a test says itself that a rank has given a call and waits.
 */
@Tag("L0")
@Tag("L2")
@Timeout(300)
class DeviceWaitsTest {
    private final StoppedClock clock = new StoppedClock();

    @AfterEach
    void goOn() {
        clock.close();
    }

    private static Ranks hasty(int ranks) {
        return Ranks.local(ranks).withConfig(CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(1)));
    }

    /** Says that the rank has given NCCL a transfer. */
    private static void give(Communicator world, Operation operation, int peer) {
        CallCounts counts = world.endpoint().calls.counts;
        counts.count(operation, peer);
        counts.publish();
    }

    /** Waits for the device, as far as others see, until the ranks have failed, or the latch opens. */
    private static void waitForDevice(Communicator world, CountDownLatch end) throws InterruptedException {
        Endpoint endpoint = world.endpoint();
        HostWaits waits = endpoint.state.waits();
        waits.begin();
        try {
            while (endpoint.failure() == null && end.getCount() > 0) {
                Thread.sleep(1);
            }
        } finally {
            waits.end();
        }
    }

    private static void doNothingUntilOthersFail(Communicator world) throws InterruptedException {
        while (world.endpoint().failure() == null) {
            Thread.sleep(1);
        }
    }

    @Test
    void aRankThatIsBehindIsNamed() {
        DevicesNeeded.assume(2);
        CountDownLatch never = new CountDownLatch(1);
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> hasty(2).each(rank -> {
                    if (rank.index() == 1) {
                        doNothingUntilOthersFail(rank.communicator());
                        return;
                    }
                    give(rank.communicator(), Operation.RECEIVE, 1);
                    clock.pass();
                    waitForDevice(rank.communicator(), never);
                    rank.communicator().check();
                }));
        assertEquals(List.of(1), failed.ranks());
        assertTrue(String.valueOf(failed.getMessage()).contains("rank 1 did not come"), failed::getMessage);
    }

    @Test
    void ranksThatWaitForTheirDevicesThemselvesAreNotToBlame() {
        DevicesNeeded.assume(3);
        CountDownLatch never = new CountDownLatch(1);
        CyclicBarrier given = new CyclicBarrier(2);
        RankFailedException failed = assertThrows(
                RankFailedException.class,
                () -> hasty(3).each(rank -> {
                    if (rank.index() == 2) {
                        doNothingUntilOthersFail(rank.communicator());
                        return;
                    }
                    give(rank.communicator(), Operation.RECEIVE, rank.index() + 1);
                    given.await();
                    clock.pass();
                    waitForDevice(rank.communicator(), never);
                    rank.communicator().check();
                }));
        assertEquals(List.of(2), failed.ranks());
    }

    @Test
    void longWorkOfADeviceIsNoFailure() {
        DevicesNeeded.assume(2);
        CyclicBarrier given = new CyclicBarrier(2);
        CountDownLatch done = new CountDownLatch(1);
        hasty(2).each(rank -> {
            give(rank.communicator(), rank.index() == 0 ? Operation.SEND : Operation.RECEIVE, 1 - rank.index());
            given.await();
            if (rank.index() == 0) {
                waitForDevice(rank.communicator(), done);
            } else {
                clock.pass(rank.communicator().config().timeout().multipliedBy(3));
                done.countDown();
            }
            given.await();
            assertNull(rank.communicator().endpoint().failure());
        });
    }

    /** What rank 0 does with the world and a communicator that was split from it. */
    private interface OfRank0 {
        void run(Rank rank, Communicator part);
    }

    private static void onRank0(OfRank0 body) {
        DevicesNeeded.assume(2);
        CyclicBarrier done = new CyclicBarrier(2);
        hasty(2).each(rank -> {
            Communicator world = rank.communicator();
            try (Communicator part = world.split(0, 0, world.config())) {
                done.await();
                if (rank.index() == 0) {
                    body.run(rank, part);
                }
                done.await();
            }
        });
    }

    /** A failure reaches communicators one after another: a thread may be told by the first, and wait for its device before the last. */
    @Test
    void aFailureThatOneCommunicatorHasToldOfEndsNoLaterWaitBecauseOfAnother() {
        onRank0((rank, part) -> {
            fail(part);
            waitMeanwhile(rank, () -> fail(rank.communicator()));
        });
    }

    @Test
    void aFailureDuringAWaitIsThrownAfterIt() {
        onRank0((rank, part) -> {
            RankFailedException failed =
                    assertThrows(RankFailedException.class, () -> waitMeanwhile(rank, () -> fail(part)));
            assertEquals(List.of(1), failed.ranks());
        });
    }

    /** Fails a communicator, and those that were split from it, not the one that it was split from. */
    private static void fail(Communicator communicator) {
        Objects.requireNonNull(communicator.endpoint().meeting)
                .fail(new RankFailure(List.of(1), "rank 1 is ill", null));
    }

    private static void waitMeanwhile(Rank rank, Runnable meanwhile) {
        HostWaits waits = rank.communicator().endpoint().state.waits();
        waits.begin();
        meanwhile.run();
        waits.end();
        waits.check();
    }

    /** Interrupts rank 0 when it waits, which {@code waits} does on its thread. */
    private static RankFailedException interrupted(OfRank0 waits) {
        DevicesNeeded.assume(2);
        CompletableFuture<Thread> first = new CompletableFuture<>();
        CompletableFuture<RankFailedException> told = new CompletableFuture<>();
        Ranks.local(2).each(rank -> {
            Communicator world = rank.communicator();
            if (rank.index() == 1) {
                Thread thread = first.get();
                RankCalls calls =
                        Objects.requireNonNull(world.endpoint().meeting).endpoint(0).calls;
                while (calls.waitingForPeers() == 0) {
                    Thread.onSpinWait();
                }
                thread.interrupt();
                doNothingUntilOthersFail(world);
                return;
            }
            first.complete(Thread.currentThread());
            told.complete(assertThrows(RankFailedException.class, () -> waits.run(rank, world)));
            assertTrue(Thread.interrupted(), "the interrupt was lost");
        });
        return told.join();
    }

    @Test
    void anInterruptEndsACollective() {
        RankFailedException failed = interrupted((rank, world) -> {
            try (Scope scope = rank.device().openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, 4);
                world.allReduce(x, x, Reduction.SUM, rank.device().stream());
                rank.device().stream().synchronize();
            }
        });
        assertEquals(List.of(0), failed.ranks());
        assertEquals("allReduce of 4 FLOAT32, SUM", failed.collective());
        assertTrue(
                String.valueOf(failed.getMessage())
                        .endsWith(": the thread of rank 0 was interrupted while it waited for other ranks"),
                failed::getMessage);
    }

    @Test
    void anInterruptEndsAWaitForTheDeviceWhereARankIsBehind() {
        RankFailedException failed = interrupted((rank, world) -> {
            give(world, Operation.RECEIVE, 1);
            HostWaits waits = world.endpoint().state.waits();
            waits.begin();
            while (world.endpoint().failure() == null) {
                Thread.onSpinWait();
            }
            waits.end();
            waits.check();
        });
        assertEquals(List.of(0), failed.ranks());
    }

    @Test
    void aGroupWhoseReceiveNobodySendsEnds() {
        DevicesNeeded.assume(2);
        // NCCL on GPUs may refuse the second receive instead: "Message truncated", for its ranks connect in other ways.
        Class<? extends RuntimeException> failure =
                Provider.current() == Provider.REFERENCE ? RankFailedException.class : RuntimeException.class;
        ConcurrentHashMap<Integer, RuntimeException> told = new ConcurrentHashMap<>();
        hasty(2).each(rank -> {
            Communicator world = rank.communicator();
            clock.pass();
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Tensor own = scope.tensor(DType.FLOAT32, 4);
                Tensor other = scope.tensor(DType.FLOAT32, 4);
                told.put(rank.index(), assertThrows(failure, () -> {
                    if (rank.index() == 0) {
                        Communicator.group(() -> {
                            world.send(own, 1, stream);
                            world.receive(other, 1, stream);
                        });
                    } else {
                        world.receive(other, 0, stream);
                        world.receive(other, 0, stream);
                    }
                    stream.synchronize();
                }));
            }
        });
        IntStream.range(0, 2).forEach(rank -> assertNotNull(told.get(rank), "rank " + rank));
    }

    @Test
    void ranksThatSendToEachOtherOneByOneAreNotGivenToNccl() {
        DevicesNeeded.assume(2);
        hasty(2).each(rank -> {
            Communicator world = rank.communicator();
            clock.pass();
            try (Scope scope = rank.device().openScope()) {
                Tensor own = scope.tensor(DType.FLOAT32, 4);
                assertThrows(
                        RankFailedException.class, () -> world.send(own, 1 - rank.index(), rank.device().stream()));
            }
        });
    }
}
