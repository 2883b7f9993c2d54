package dev.chagres.nccl;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks that are threads give a call to NCCL only when their peers have come to theirs. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class RanksMeetTest {
    /** Of ranks that wait in vain. On CUDA the first collective of a communicator connects them, for seconds where the GPU has other users. */
    static final Duration IN_VAIN =
            Provider.current() == Provider.REFERENCE ? Duration.ofMillis(500) : Duration.ofSeconds(6);

    private static final CommunicatorConfig SHORT =
            CommunicatorConfig.standard().withTimeout(IN_VAIN);

    private static final CommunicatorConfig PATIENT = SHORT.withTimeout(Duration.ofSeconds(20));

    @Test
    void aCallReturnsOnlyAfterThePeerHasCome() {
        DevicesNeeded.assume(2);
        AtomicBoolean came = new AtomicBoolean();
        Ranks.local(2).withConfig(PATIENT).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Tensor tensor = scope.tensor(DType.FLOAT32, 4);
                if (rank.index() == 1) {
                    Thread.sleep(50);
                    came.set(true);
                }
                rank.communicator().allReduce(tensor, tensor, Reduction.SUM, rank.device().stream());
                assertTrue(came.get());
            }
        });
    }

    @Test
    void aTransferReturnsOnlyAfterThePeerHasCome() {
        DevicesNeeded.assume(2);
        AtomicBoolean came = new AtomicBoolean();
        Ranks.local(2).withConfig(PATIENT).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Tensor own = scope.tensor(DType.FLOAT32, 4);
                Tensor other = scope.tensor(DType.FLOAT32, 4);
                int peer = 1 - rank.index();
                own.set(stream, rank.index(), 1f, 2f, 3f);
                if (rank.index() == 1) {
                    Thread.sleep(50);
                    came.set(true);
                }
                Communicator.group(() -> {
                    rank.communicator().send(own, peer, stream);
                    rank.communicator().receive(other, peer, stream);
                });
                assertTrue(came.get());
                assertArrayEquals(new float[] {peer, 1, 2, 3}, other.toFloats(stream));
            }
        });
    }

    /** Each of these waits for the receive that the other one would call after it. */
    @ParameterizedTest
    @EnumSource(CollectiveChecks.class)
    void ranksThatAllSendFirstAreToldOfTheGroup(CollectiveChecks checks) {
        DevicesNeeded.assume(3);
        for (int count = 2; count <= 3; count++) {
            int ranks = count;
            RankFailedException failure = assertThrows(
                    RankFailedException.class,
                    () -> Ranks.local(ranks)
                            .withConfig(SHORT.withChecks(checks))
                            .each(rank -> {
                                try (Scope scope = rank.device().openScope()) {
                                    Tensor tensor = scope.tensor(DType.FLOAT32, 4);
                                    rank.communicator()
                                            .send(tensor, (rank.index() + 1) % ranks, rank.device().stream());
                                    rank.communicator()
                                            .receive(
                                                    tensor, (rank.index() + ranks - 1) % ranks, rank.device().stream());
                                }
                            }));
            String told = String.valueOf(failure.getMessage());
            int first = told.charAt(told.indexOf(", rank ") + ", rank ".length()) - '0';
            int late = (first + 1) % ranks;
            assertEquals(
                    "communicator \"world\", rank " + first + " of " + ranks + ", in send of 4 FLOAT32 to rank " + late
                            + " waited X ms: rank " + late + " did not come; rank " + late
                            + " waits in send of 4 FLOAT32 to rank " + (late + 1) % ranks
                            + "; put a send and its opposite receive into Communicator.group",
                    told.replaceAll("waited \\d+ ms", "waited X ms"));
        }
    }

    @Test
    void groupsOfSendsMeetReceivesOneByOne() {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(PATIENT).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator world = rank.communicator();
                Tensor a = scope.tensor(DType.FLOAT32, 2);
                Tensor b = scope.tensor(DType.FLOAT32, 2);
                if (rank.index() == 0) {
                    a.set(stream, 1f, 2f);
                    b.set(stream, 3f, 4f);
                    Communicator.group(() -> {
                        world.send(a, 1, stream);
                        world.send(b, 1, stream);
                    });
                } else {
                    world.receive(a, 0, stream);
                    world.receive(b, 0, stream);
                    assertArrayEquals(new float[] {1, 2}, a.toFloats(stream));
                    assertArrayEquals(new float[] {3, 4}, b.toFloats(stream));
                }
            }
        });
    }

    @Test
    void groupsOfTwoCommunicatorsMeetInEitherOrder() {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(PATIENT).each(rank -> {
            Communicator world = rank.communicator();
            try (Communicator second = world.split(0, 0, world.config().withName("second"));
                    Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Tensor a = scope.tensor(DType.FLOAT32, 1);
                Tensor b = scope.tensor(DType.FLOAT32, 1);
                a.set(stream, 1f);
                b.set(stream, 10f);
                Communicator first = rank.index() == 0 ? world : second;
                Communicator last = rank.index() == 0 ? second : world;
                Communicator.group(() -> {
                    first.allReduce(first == world ? a : b, first == world ? a : b, Reduction.SUM, stream);
                    last.allReduce(last == world ? a : b, last == world ? a : b, Reduction.SUM, stream);
                });
                assertArrayEquals(new float[] {2}, a.toFloats(stream));
                assertArrayEquals(new float[] {20}, b.toFloats(stream));
            }
        });
    }

    @Test
    void aGraphMeetsCallsOneByOne() {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(PATIENT).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator world = rank.communicator();
                Tensor sum = scope.tensor(DType.FLOAT32, 1);
                Tensor all = scope.tensor(DType.FLOAT32, 2);
                Runnable step = () -> {
                    world.allReduce(sum, sum, Reduction.SUM, stream);
                    world.allGather(sum, all, stream);
                    world.allReduce(all, all, Reduction.MAX, stream);
                };
                step.run();
                if (rank.index() == 1) {
                    repeat(sum, all, step, stream);
                    return;
                }
                try (Graph graph = stream.capture(step)) {
                    repeat(sum, all, graph::launch, stream);
                }
            }
        });
    }

    private static void repeat(Tensor sum, Tensor all, Runnable step, Stream stream) {
        for (int i = 0; i < 100; i++) {
            sum.set(stream, (float) i);
            step.run();
            assertArrayEquals(new float[] {2 * i, 2 * i}, all.toFloats(stream));
        }
    }

    @Test
    void aLaunchWhosePeerDoesNotComeEndsWithinTheTimeout() {
        DevicesNeeded.assume(2);
        CountDownLatch ended = new CountDownLatch(1);
        Ranks.local(2).withConfig(SHORT).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator world = rank.communicator();
                Tensor sum = scope.tensor(DType.FLOAT32, 1);
                try (Graph graph = stream.capture(() -> world.allReduce(sum, sum, Reduction.SUM, stream))) {
                    graph.launch();
                    if (rank.index() == 1) {
                        ended.await();
                        return;
                    }
                    RankFailedException failure = assertThrows(RankFailedException.class, graph::launch);
                    assertEquals(
                            "communicator \"world\", rank 0 of 2, in allReduce of 1 FLOAT32, SUM waited "
                                    + IN_VAIN.toMillis() + " ms:" + " rank 1 did not come",
                            failure.getMessage());
                } finally {
                    ended.countDown();
                }
            }
        });
    }

    @Test
    void aCommunicatorIsNotClosedBeforeItsGraphs() {
        DevicesNeeded.assume(2);
        Ranks.local(2).withConfig(PATIENT).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Stream stream = rank.device().stream();
                Communicator second = rank.communicator().split(0, 0, PATIENT.withName("second"));
                Tensor sum = scope.tensor(DType.FLOAT32, 1);
                try (Graph graph = stream.capture(() -> second.allReduce(sum, sum, Reduction.SUM, stream))) {
                    graph.launch();
                    IllegalStateException refused = assertThrows(IllegalStateException.class, second::close);
                    assertEquals(
                            "close: expected no open graph with calls of communicator \"second\", rank " + rank.index()
                                    + " of 2, got 1; close graphs before the communicators whose calls they have recorded",
                            refused.getMessage());
                    graph.launch();
                }
                assertThrows(
                        ArithmeticException.class,
                        () -> stream.capture(() -> {
                            second.allReduce(sum, sum, Reduction.SUM, stream);
                            throw new ArithmeticException();
                        }));
                second.close();
            }
        });
    }
}
