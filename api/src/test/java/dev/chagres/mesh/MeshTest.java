package dev.chagres.mesh;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.UniqueId;
import java.time.Duration;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Every shape of up to eight ranks: coordinates, and the members of each communicator, against a search over all ranks. */
@Tag("L0")
@Tag("L2")
class MeshTest {
    static List<MeshShape> shapes() {
        List<MeshShape> shapes = new ArrayList<>();
        int most = Math.min(8, Device.count());
        for (int pipeline : new int[] {1, 2}) {
            for (int replicate : new int[] {1, 3}) {
                for (int shard : new int[] {1, 2, 4}) {
                    for (int tensor : new int[] {1, 2}) {
                        MeshShape shape = MeshShape.ofOne()
                                .with(MeshDimension.PIPELINE, pipeline)
                                .with(MeshDimension.REPLICATE, replicate)
                                .with(MeshDimension.SHARD, shard)
                                .with(MeshDimension.TENSOR, tensor);
                        if (shape.ranks() <= most) {
                            shapes.add(shape);
                        }
                    }
                }
            }
        }
        return shapes;
    }

    private static boolean differInTheseAlone(MeshShape shape, Set<MeshDimension> dimensions, int a, int b) {
        for (MeshDimension other : MeshDimension.values()) {
            if (!dimensions.contains(other) && shape.coordinate(other, a) != shape.coordinate(other, b)) {
                return false;
            }
        }
        return true;
    }

    @ParameterizedTest
    @MethodSource("shapes")
    void communicatorsJoinRanksThatDifferInOneCoordinate(MeshShape shape) {
        DevicesNeeded.assume(shape.ranks());
        Ranks.local(shape.ranks()).each(rank -> {
            Stream stream = rank.device().stream();
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    Scope scope = rank.device().openScope()) {
                for (MeshDimension dimension : MeshDimension.values()) {
                    Communicator along = mesh.along(dimension);
                    assertEquals(mesh.size(dimension), along.ranks());
                    assertEquals(mesh.coordinate(dimension), along.rank());
                    assertMembers(mesh, rank, Set.of(dimension), along, stream, scope);
                }
                for (MeshDimension first : MeshDimension.values()) {
                    for (MeshDimension second : MeshDimension.values()) {
                        Communicator two = mesh.along(second, first);
                        assertSame(two, mesh.along(first, second));
                        assertMembers(mesh, rank, EnumSet.of(first, second), two, stream, scope);
                        Communicator three = mesh.along(first, second, MeshDimension.TENSOR);
                        assertMembers(
                                mesh, rank, EnumSet.of(first, second, MeshDimension.TENSOR), three, stream, scope);
                    }
                }
            }
        });
    }

    /** They are those that differ along these dimensions alone, in the order of the mesh. */
    private static void assertMembers(
            Mesh mesh, Rank rank, Set<MeshDimension> dimensions, Communicator along, Stream stream, Scope scope) {
        Tensor own = scope.tensor(DType.INT32, 1);
        Tensor all = scope.tensor(DType.INT32, along.ranks());
        own.set(stream, rank.index());
        along.allGather(own, all, stream);
        int[] members = IntStream.range(0, mesh.shape().ranks())
                .filter(other -> differInTheseAlone(mesh.shape(), dimensions, rank.index(), other))
                .toArray();
        assertArrayEquals(members, all.toInts(stream), dimensions + " of " + mesh);
    }

    @Test
    void shapesAreValues() {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, 2).with(MeshDimension.TENSOR, 4);
        assertEquals("shard=2,tensor=4", shape.toString());
        assertEquals("one rank", MeshShape.ofOne().toString());
        assertEquals(8, shape.ranks());
        assertEquals(shape, MeshShape.ofOne().with(MeshDimension.TENSOR, 4).with(MeshDimension.SHARD, 2));
        assertEquals(
                shape.hashCode(),
                MeshShape.ofOne()
                        .with(MeshDimension.TENSOR, 4)
                        .with(MeshDimension.SHARD, 2)
                        .hashCode());
        assertNotEquals(shape, shape.with(MeshDimension.CONTEXT, 2));
    }

    @Test
    void misuse() {
        MeshShape two = MeshShape.ofOne().with(MeshDimension.SHARD, 2);
        assertThrown(
                IllegalArgumentException.class,
                "size: expected at least 1 along TENSOR, got 0",
                () -> two.with(MeshDimension.TENSOR, 0));
        assertThrown(
                IllegalArgumentException.class,
                "size: expected at most 2147483647 ranks in all, got 2147483647 along TENSOR",
                () -> two.with(MeshDimension.TENSOR, Integer.MAX_VALUE));
        assertThrown(
                IllegalArgumentException.class,
                "rank: expected 0 to 1, got 2",
                () -> two.coordinate(MeshDimension.SHARD, 2));
        try (Device device = Device.open();
                Communicator alone =
                        Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard())) {
            assertThrown(
                    IllegalArgumentException.class,
                    "shape: expected 1 ranks, as communicator \"world\", rank 0 of 1 has, got 2 of shard=2",
                    () -> Mesh.of(alone, two));
            Mesh mesh = Mesh.of(alone, MeshShape.ofOne());
            assertEquals("mesh one rank, rank 0", mesh.toString());
            assertEquals(MeshShape.ofOne(), mesh.shape());
            mesh.close();
            mesh.close();
            assertThrown(
                    IllegalStateException.class, "the mesh one rank is closed", () -> mesh.along(MeshDimension.SHARD));
            assertThrown(
                    IllegalStateException.class,
                    "the mesh one rank is closed",
                    () -> mesh.along(MeshDimension.SHARD, MeshDimension.CONTEXT));
        }
    }

    @Test
    void ranksWithAnotherShapeAreRefused() {
        DevicesNeeded.assume(4);
        MeshShape four = MeshShape.ofOne().with(MeshDimension.TENSOR, 4);
        MeshShape square = MeshShape.ofOne().with(MeshDimension.SHARD, 2).with(MeshDimension.TENSOR, 2);
        Ranks ranks = Ranks.local(4).withConfig(CommunicatorConfig.standard().withTimeout(Duration.ofSeconds(20)));
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> ranks.each(rank -> Mesh.of(rank.communicator(), rank.index() == 0 ? four : square)
                        .close()));
        assertEquals(
                "rank 0 of 4 failed: java.lang.IllegalStateException: shape: expected the same on all ranks, got"
                        + " tensor=4 on rank 0 and another on others, in which it would be rank 0 of 2 along SHARD",
                failure.getMessage());
    }

    @Test
    void aSizeNeedsADimension() {
        assertThrown(
                NullPointerException.class,
                "dimension: expected a value, got null",
                () -> MeshShape.ofOne().with(null, 0));
    }
}
