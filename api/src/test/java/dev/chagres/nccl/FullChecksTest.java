package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** With full checks a difference between ranks is an exception on each of them, and nothing was enqueued. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class FullChecksTest {
    private static final CommunicatorConfig FULL =
            CommunicatorConfig.standard().withChecks(CollectiveChecks.FULL).withTimeout(RanksMeetTest.IN_VAIN);

    private interface Body {
        void run(Rank rank, Tensor x, Tensor y);
    }

    private static void onEach(int ranks, Body body) {
        DevicesNeeded.assume(ranks);
        Ranks.local(ranks).withConfig(FULL).each(rank -> {
            try (Scope scope = rank.device().openScope()) {
                Tensor x = scope.tensor(DType.FLOAT32, 8);
                Tensor y = scope.tensor(DType.FLOAT32, 8L * ranks);
                x.set(rank.device().stream(), 1f, 1, 1, 1, 1, 1, 1, 1);
                body.run(rank, x, y);
                rank.communicator().allReduce(x, x, Reduction.SUM, rank.device().stream());
                assertEquals(ranks, x.toFloats(rank.device().stream())[7]);
            }
        });
    }

    @Test
    void anotherOperation() {
        onEach(2, (rank, x, y) -> {
            Stream stream = rank.device().stream();
            String text = "collective 1 of \"world\": expected the same call on every rank, got rank 0: allReduce of 8"
                    + " FLOAT32, SUM; rank 1: allGather of 8 FLOAT32";
            assertThrown(IllegalStateException.class, text, () -> {
                if (rank.index() == 0) {
                    rank.communicator().allReduce(x, x, Reduction.SUM, stream);
                } else {
                    rank.communicator().allGather(x, y, stream);
                }
            });
        });
    }

    @Test
    void anotherReductionInAGroup() {
        onEach(3, (rank, x, y) -> {
            Stream stream = rank.device().stream();
            Reduction mine = rank.index() == 1 ? Reduction.MAX : Reduction.SUM;
            String text = "collective 2 of \"world\": expected the same call on every rank, got rank 0: allReduce of 8"
                    + " FLOAT32, SUM; rank 1: allReduce of 8 FLOAT32, MAX; rank 2: allReduce of 8 FLOAT32, SUM";
            assertThrown(
                    IllegalStateException.class,
                    text,
                    () -> Communicator.group(() -> {
                        rank.communicator().allGather(x, y, stream);
                        rank.communicator().allReduce(x, x, mine, stream);
                    }));
            assertArrayEquals(new float[] {1, 1, 1, 1, 1, 1, 1, 1}, x.toFloats(stream));
        });
    }

    @Test
    void anotherRoot() {
        onEach(
                2,
                (rank, x, y) -> assertThrown(
                        IllegalStateException.class,
                        "collective 1 of \"world\": expected the same call on every rank, got rank 0: broadcast of 8 FLOAT32, root"
                                + " 0; rank 1: broadcast of 8 FLOAT32, root 1",
                        () -> rank.communicator().broadcast(x, x, rank.index(), rank.device().stream())));
    }

    @Test
    void anotherShape() {
        onEach(2, (rank, x, y) -> {
            Tensor view = rank.index() == 0
                    ? rank.device().openScope().tensor(DType.FLOAT32, 2, 4)
                    : rank.device().openScope().tensor(DType.FLOAT32, 8);
            view.zero(rank.device().stream());
            assertThrown(
                    IllegalStateException.class,
                    "collective 1 of \"world\": expected the same call on every rank, got rank 0: allReduce of 8 FLOAT32, SUM,"
                            + " shape [2, 4]; rank 1: allReduce of 8 FLOAT32, SUM",
                    () -> rank.communicator().allReduce(view, view, Reduction.SUM, rank.device().stream()));
        });
    }

    @Test
    void aShorterTransfer() {
        onEach(
                2,
                (rank, x, y) -> assertThrown(
                        IllegalStateException.class,
                        "transfer 1 from rank 0 to rank 1: expected the same call on every rank, got rank 0: 8 FLOAT32; rank 1: 16"
                                + " FLOAT32",
                        () -> {
                            if (rank.index() == 0) {
                                rank.communicator().send(x, 1, rank.device().stream());
                            } else {
                                rank.communicator().receive(y, 0, rank.device().stream());
                            }
                        }));
    }

    @Test
    void aRankThatNeverComes() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).withConfig(FULL).each(rank -> {
                    if (rank.index() == 1) {
                        Thread.sleep(30_000);
                    }
                    try (Scope scope = rank.device().openScope()) {
                        Tensor x = scope.tensor(DType.INT32, 2);
                        rank.communicator().allReduce(x, x, Reduction.MIN, rank.device().stream());
                    }
                }));
        assertEquals(
                "communicator \"world\", rank 0 of 2, in allReduce of 2 INT32, MIN waited "
                        + RanksMeetTest.IN_VAIN.toMillis() + " ms: rank 1 did not come",
                failure.getMessage());
        assertEquals(List.of(1), failure.ranks());
    }

    /** Rank 2 waits for both others; rank 1 cannot come, for it waits for rank 0 in another communicator. */
    @Test
    void aRankThatWaitsElsewhereIsNotNamed() {
        DevicesNeeded.assume(3);
        CommunicatorConfig patient = FULL.withTimeout(Duration.ofSeconds(60));
        CountDownLatch others = new CountDownLatch(2);
        Ranks.local(3).withConfig(FULL.withTimeout(Duration.ofSeconds(2))).each(rank -> {
            Stream stream = rank.device().stream();
            Communicator world = rank.communicator();
            try (Communicator pair = world.split(rank.index() / 2, 0, patient.withName("pair"));
                    Scope scope = rank.device().openScope()) {
                Tensor x = scope.tensor(DType.INT32, 2);
                if (rank.index() == 0) {
                    others.await();
                    return;
                }
                Communicator waits = rank.index() == 1 ? pair : world;
                RankFailedException failure =
                        assertThrows(RankFailedException.class, () -> waits.allReduce(x, x, Reduction.MIN, stream));
                assertEquals(
                        "communicator \"world\", rank 2 of 3, in allReduce of 2 INT32, MIN waited 2000 ms: rank 0 did not come",
                        failure.getMessage());
                assertEquals(List.of(0), failure.ranks());
            } finally {
                others.countDown();
            }
        });
    }

    /** The same drawn sequence of collectives, with full checks and without, gives the same numbers. */
    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
    void drawnSequences(long seed) {
        int ranks = 1 + (int) (seed % 5);
        List<List<float[]>> plain = drawn(seed, ranks, FULL.withChecks(CollectiveChecks.ARGUMENTS));
        List<List<float[]>> full = drawn(seed, ranks, FULL.withTimeout(Duration.ofSeconds(30)));
        for (int rank = 0; rank < ranks; rank++) {
            for (int i = 0; i < plain.get(rank).size(); i++) {
                assertArrayEquals(plain.get(rank).get(i), full.get(rank).get(i), "rank " + rank + ", call " + i);
            }
        }
    }

    private static List<List<float[]>> drawn(long seed, int ranks, CommunicatorConfig config) {
        DevicesNeeded.assume(ranks);
        return Ranks.local(ranks)
                .withConfig(config.withTimeout(Duration.ofSeconds(30)))
                .run(rank -> {
                    SplittableRandom random = new SplittableRandom(seed);
                    List<float[]> results = new ArrayList<>();
                    try (Scope scope = rank.device().openScope()) {
                        for (int call = 0; call < 40; call++) {
                            scope.restart();
                            results.add(call(random, rank, scope));
                        }
                    }
                    return results;
                });
    }

    private static float[] call(SplittableRandom random, Rank rank, Scope scope) {
        Communicator world = rank.communicator();
        Stream stream = rank.device().stream();
        int count = random.nextInt(200);
        int root = random.nextInt(rank.count());
        Tensor small = scope.tensor(DType.FLOAT32, count);
        Tensor large = scope.tensor(DType.FLOAT32, (long) count * rank.count());
        Tensor out = scope.tensor(DType.FLOAT32, (long) count * rank.count());
        float[] values = new float[count];
        Arrays.fill(values, rank.index() + random.nextInt(9));
        small.set(stream, values);
        large.zero(stream);
        out.zero(stream);
        switch (random.nextInt(6)) {
            case 0 -> world.allReduce(small, small, Reduction.SUM, stream);
            case 1 -> world.allGather(small, out, stream);
            case 2 -> world.broadcast(small, small, root, stream);
            case 3 -> world.reduceScatter(large, small, Reduction.MAX, stream);
            case 4 -> world.gather(small, rank.index() == root ? out : null, root, stream);
            default ->
                Communicator.group(() -> {
                    world.send(small, (rank.index() + 1) % rank.count(), stream);
                    world.receive(scope.view(out, 0, count), (rank.index() + rank.count() - 1) % rank.count(), stream);
                });
        }
        float[] result = Arrays.copyOf(small.toFloats(stream), count * (rank.count() + 1));
        System.arraycopy(out.toFloats(stream), 0, result, count, count * rank.count());
        return result;
    }
}
