package dev.chagres.nccl;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What calls move, reckoned by hand. */
@Tag("L0")
@Tag("L2")
@Timeout(60)
class MovedBytesTest {
    private static final int C = 6;

    /** Returns on each of two ranks what the calls of {@code body} have moved, by operation. */
    private static List<Map<Operation, Long>> moved(BiConsumer<Rank, Scope> body) {
        DevicesNeeded.assume(2);
        return Ranks.local(2).run(rank -> {
            MovedBytes bytes = MovedBytes.of(rank.communicator());
            long[] before = all(bytes);
            try (Scope scope = rank.device().openScope(rank.device().stream())) {
                body.accept(rank, scope);
                rank.communicator().synchronize(rank.device().stream());
            }
            long[] after = all(bytes);
            Map<Operation, Long> moved = new EnumMap<>(Operation.class);
            for (Operation operation : Operation.values()) {
                long more = after[operation.ordinal()] - before[operation.ordinal()];
                if (more != 0) {
                    moved.put(operation, more);
                }
            }
            return moved;
        });
    }

    private static long[] all(MovedBytes bytes) {
        long[] all = new long[Operation.values().length];
        for (Operation operation : Operation.values()) {
            all[operation.ordinal()] = bytes.by(operation);
        }
        return all;
    }

    private static void assertMoved(Map<Operation, Long> expected, BiConsumer<Rank, Scope> body) {
        assertEquals(List.of(expected, expected), moved(body));
    }

    @Test
    void aCallCountsTheWholeThatItMoves() {
        assertMoved(
                Map.of(
                        Operation.ALL_REDUCE, 2L * C * 4,
                        Operation.ALL_GATHER, 2L * C * 2,
                        Operation.REDUCE_SCATTER, 2L * C * 4,
                        Operation.BROADCAST, C * 4L,
                        Operation.REDUCE, C * 4L,
                        Operation.GATHER, 2L * C * 4,
                        Operation.SCATTER, 2L * C * 4,
                        Operation.ALL_TO_ALL, 2L * C * 4),
                (rank, scope) -> {
                    Stream stream = scope.stream();
                    Communicator communicator = rank.communicator();
                    boolean root = rank.index() == 0;
                    Tensor part = scope.tensor(DType.FLOAT32, C);
                    Tensor whole = scope.tensor(DType.FLOAT32, 2 * C);
                    Tensor other = scope.tensor(DType.FLOAT32, 2 * C);
                    communicator.allReduce(whole, whole, Reduction.SUM, stream);
                    communicator.allGather(
                            scope.tensor(DType.BFLOAT16, C), scope.tensor(DType.BFLOAT16, 2 * C), stream);
                    communicator.reduceScatter(whole, part, Reduction.SUM, stream);
                    communicator.broadcast(root ? part : null, part, 0, stream);
                    communicator.reduce(part, root ? part : null, Reduction.SUM, 0, stream);
                    communicator.gather(part, root ? whole : null, 0, stream);
                    communicator.scatter(root ? whole : null, part, 0, stream);
                    communicator.allToAll(whole, other, stream);
                });
    }

    @Test
    void transfersCountOnEachEndAndNotToOneself() {
        assertMoved(Map.of(Operation.SEND, C * 4L, Operation.RECEIVE, C * 4L), (rank, scope) -> {
            Tensor sent = scope.tensor(DType.FLOAT32, C);
            Tensor received = scope.tensor(DType.FLOAT32, C);
            Tensor kept = scope.tensor(DType.FLOAT32, C);
            int peer = 1 - rank.index();
            Communicator.group(() -> {
                rank.communicator().send(sent, peer, scope.stream());
                rank.communicator().receive(received, peer, scope.stream());
                rank.communicator().send(sent, rank.index(), scope.stream());
                rank.communicator().receive(kept, rank.index(), scope.stream());
            });
        });
    }

    @Test
    void callsOfSplitCommunicatorsCountAndThoseOfOneRankDoNot() {
        assertMoved(Map.of(Operation.ALL_REDUCE, 4L), (rank, scope) -> {
            Tensor one = scope.tensor(DType.FLOAT32, 1);
            CommunicatorConfig config = rank.communicator().config();
            try (Communicator both = rank.communicator().split(0, rank.index(), config);
                    Communicator alone = rank.communicator().split(rank.index(), 0, config)) {
                both.allReduce(one, one, Reduction.SUM, scope.stream());
                alone.allReduce(one, one, Reduction.SUM, scope.stream());
                both.synchronize(scope.stream());
            }
        });
    }

    @Test
    void aGroupThatThrowsMovesNothing() {
        assertMoved(Map.of(), (rank, scope) -> {
            Tensor one = scope.tensor(DType.FLOAT32, 1);
            assertThrown(
                    IllegalStateException.class,
                    "no",
                    () -> Communicator.group(() -> {
                        rank.communicator().allReduce(one, one, Reduction.SUM, scope.stream());
                        throw new IllegalStateException("no");
                    }));
        });
    }

    @Test
    void aCallWhosePeerHasFailedMovesNothing() {
        DevicesNeeded.assume(2);
        AtomicLong moved = new AtomicLong(-1);
        assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    Stream stream = rank.device().stream();
                    try (Scope scope = rank.device().openScope(stream)) {
                        if (rank.index() == 1) {
                            throw new IllegalStateException("no");
                        }
                        Tensor values = scope.tensor(DType.FLOAT32, C);
                        assertThrows(
                                RankFailedException.class,
                                () -> rank.communicator().allReduce(values, values, Reduction.SUM, stream));
                        moved.set(MovedBytes.of(rank.communicator()).by(Operation.ALL_REDUCE));
                    }
                }));
        assertEquals(0, moved.get());
    }

    @Test
    void itsTextHasTheBytesOfWhatMoved() {
        DevicesNeeded.assume(2);
        List<String> texts = Ranks.local(2).run(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope(stream)) {
                Tensor values = scope.tensor(DType.FLOAT32, C);
                rank.communicator().broadcast(values, values, 0, stream);
                rank.communicator().allReduce(values, values, Reduction.SUM, stream);
                rank.communicator().synchronize(stream);
                return MovedBytes.of(rank.communicator()).toString();
            }
        });
        String expected = "MovedBytes[allReduce=24, broadcast=24]";
        assertEquals(List.of(expected, expected), texts);
    }

    @Test
    void aGraphsCallsCountAtEachLaunch() {
        assertMoved(Map.of(Operation.ALL_REDUCE, 3L * 4 * C, Operation.BROADCAST, 3L * 4), (rank, scope) -> {
            Stream stream = scope.stream();
            Tensor values = scope.tensor(DType.FLOAT32, C);
            Tensor one = scope.tensor(DType.FLOAT32, 1);
            try (Graph graph = stream.capture(() -> {
                rank.communicator().allReduce(values, values, Reduction.SUM, stream);
                rank.communicator().broadcast(one, one, 0, stream);
            })) {
                for (int i = 0; i < 3; i++) {
                    graph.launch();
                }
                stream.synchronize();
            }
        });
    }

    @Test
    void theExampleReadsWhatAStepMoves() {
        DevicesNeeded.assume(2);
        List<Long> read = Ranks.local(2).run(rank -> {
            Stream stream = rank.device().stream();
            try (Scope scope = rank.device().openScope(stream)) {
                Communicator communicator = rank.communicator();
                Tensor gradients = scope.tensor(DType.FLOAT32, 1000);
                // @start region="moved"
                MovedBytes moved = MovedBytes.of(communicator);
                long before = moved.by(Operation.ALL_REDUCE);
                communicator.allReduce(gradients, gradients, Reduction.SUM, stream);
                long bytes = moved.by(Operation.ALL_REDUCE) - before; // 4000
                // @end
                communicator.synchronize(stream);
                return bytes;
            }
        });
        assertEquals(List.of(4000L, 4000L), read);
    }

    @Test
    void nothingGivenIsRefused() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            MovedBytes moved = MovedBytes.of(rank.communicator());
            assertThrown(NullPointerException.class, "operation: expected a value, got null", () -> moved.by(null));
            assertThrown(
                    NullPointerException.class,
                    "communicator: expected a value, got null",
                    () -> MovedBytes.of((Communicator) null));
        });
    }
}
