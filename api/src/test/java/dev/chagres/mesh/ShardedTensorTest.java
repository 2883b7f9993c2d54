package dev.chagres.mesh;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Placement.Partial;
import dev.chagres.mesh.Placement.Shard;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Drawn tensors, placed anyhow over drawn meshes, against slices and sums in plain Java. */
@Tag("L0")
@Tag("L2")
class ShardedTensorTest {
    private static final long SEED = 20_261_122;
    private static final int CASES = 120;
    private static final DType[] TYPES = {DType.FLOAT32, DType.BFLOAT16, DType.INT32};

    /** A drawn case, the same on each rank. */
    private static final class Case {
        private final SplittableRandom random;
        private final MeshDimension[] dimensions;
        private final Shape shape;
        private final DType dtype;
        /** The whole tensor: integers that BFLOAT16 holds, also as sums over eight ranks. */
        private final int[] whole;

        private final Placements from;
        private final Placements to;

        Case(long seed, MeshDimension... dimensions) {
            random = new SplittableRandom(seed);
            this.dimensions = dimensions;
            long[] sizes = new long[random.nextInt(5)];
            for (int i = 0; i < sizes.length; i++) {
                sizes[i] = random.nextInt(10) == 0 ? 0 : 1 + random.nextInt(i == 0 ? 17 : 6);
            }
            shape = Shape.of(sizes);
            dtype = TYPES[random.nextInt(TYPES.length)];
            whole = random.ints(shape.count(), 0, 200).toArray();
            from = placements();
            to = placements();
        }

        private Placements placements() {
            Placements drawn = Placements.replicated();
            for (MeshDimension dimension : dimensions) {
                int kind = random.nextInt(2 + 2 * shape.rank());
                drawn = drawn.with(
                        dimension,
                        kind == 0
                                ? Placement.replicate()
                                : kind == 1 ? Placement.partial() : Placement.shard((kind - 2) / 2));
            }
            return drawn;
        }

        /** What {@code rank} has of the whole, summands divided unequally among the ranks. */
        private int[] local(MeshShape mesh, Placements placements, int rank) {
            long[] begin = new long[shape.rank()];
            long[] end = shape.sizes();
            int summands = 1;
            int summand = 0;
            for (MeshDimension dimension : MeshDimension.values()) {
                int ranks = mesh.size(dimension);
                int coordinate = mesh.coordinate(dimension, rank);
                switch (placements.along(dimension)) {
                    case Shard(int d) -> {
                        long chunk = (end[d] - begin[d] + ranks - 1) / ranks;
                        long first = Math.min(end[d], begin[d] + coordinate * chunk);
                        end[d] = Math.min(end[d], first + chunk);
                        begin[d] = first;
                    }
                    case Partial() -> {
                        summand = summand * ranks + coordinate;
                        summands *= ranks;
                    }
                    default -> {}
                }
            }
            int[] values = new int[whole.length];
            int count = 0;
            for (int i = 0; i < whole.length; i++) {
                boolean inside = true;
                long left = i;
                for (int d = shape.rank() - 1; d >= 0; d--) {
                    long at = left % shape.size(d);
                    left /= shape.size(d);
                    inside &= at >= begin[d] && at < end[d];
                }
                if (inside) {
                    int part = whole[i] / summands;
                    values[count++] = summand == 0 ? whole[i] - (summands - 1) * part : part;
                }
            }
            return Arrays.copyOf(values, count);
        }

        Tensor tensor(Scope scope, Shape of, int... values) {
            Tensor tensor = scope.tensor(dtype, of);
            if (dtype == DType.INT32) {
                tensor.set(scope.stream(), values);
            } else {
                float[] floats = new float[values.length];
                for (int i = 0; i < values.length; i++) {
                    floats[i] = values[i];
                }
                tensor.set(scope.stream(), floats);
            }
            return tensor;
        }

        int[] values(Tensor tensor, Stream stream) {
            if (dtype == DType.INT32) {
                return tensor.toInts(stream);
            }
            float[] floats = tensor.toFloats(stream);
            int[] values = new int[floats.length];
            for (int i = 0; i < values.length; i++) {
                values[i] = (int) floats[i];
                assertEquals(floats[i], values[i]);
            }
            return values;
        }

        private void check(Mesh mesh, String text) {
            Stream stream = mesh.world().device().stream();
            int rank = mesh.world().rank();
            ShardedTensorMetadata metadata = new ShardedTensorMetadata(dtype, shape, mesh.shape(), from);
            assertEquals(metadata, ShardedTensorMetadata.of(metadata.toBytes()), text);
            try (Scope scope = mesh.world().device().openScope(stream)) {
                int[] own = local(mesh.shape(), from, rank);
                Tensor local = tensor(scope, metadata.box(rank).shape(), own);
                ShardedTensor tensor = ShardedTensor.of(mesh, metadata, local);
                ShardedTensor placed = tensor.redistribute(to, scope);
                assertEquals(to, placed.metadata().placements());
                assertArrayEquals(whole, values(placed.full(scope), stream), text + ": the whole of what came");
                assertArrayEquals(whole, values(tensor.full(scope), stream), text + ": the whole");
                if (!to.isPartial()) {
                    int[] expected = local(mesh.shape(), to, rank);
                    assertArrayEquals(expected, values(placed.local(), stream), text + ": this rank's part");
                    Tensor all = tensor(scope, shape, whole);
                    int[] cut = values(
                            ShardedTensor.distribute(mesh, all, to, scope).local(), stream);
                    assertArrayEquals(expected, cut, text + ": cut of the whole");
                }
                assertArrayEquals(own, values(local, stream), text + ": what was given stays");
            }
        }
    }

    @Test
    void stretchesOfTheLongestDimensionCoverIt() {
        for (int ranks : new int[] {1, 2, 3, 7, Integer.MAX_VALUE}) {
            long end = 0;
            for (int rank : ranks > 8
                    ? new int[] {ranks - 2, ranks - 1}
                    : IntStream.range(0, ranks).toArray()) {
                OwnedSlice stretch = OwnedSlice.of(Long.MAX_VALUE, ranks, rank);
                assertTrue(ranks > 8 || stretch.begin() == end, stretch.toString());
                end = stretch.begin() + stretch.count();
            }
            assertEquals(Long.MAX_VALUE, end, ranks + " ranks");
        }
    }

    @ParameterizedTest
    @CsvSource({
        "SHARD, 1, TENSOR, 1",
        "SHARD, 2, TENSOR, 1",
        "TENSOR, 3, REPLICATE, 1",
        "REPLICATE, 2, SHARD, 2",
        "SHARD, 4, CONTEXT, 1",
        "CONTEXT, 5, SHARD, 1",
        "REPLICATE, 3, TENSOR, 2",
        "SHARD, 2, TENSOR, 3",
        "SHARD, 7, TENSOR, 1",
        "REPLICATE, 2, SHARD, 4",
        "SHARD, 4, TENSOR, 2",
        "SHARD, 8, PIPELINE, 1"
    })
    void anyPlacementBecomesAnyOther(MeshDimension one, int ones, MeshDimension other, int others) {
        DevicesNeeded.assume(ones * others);
        MeshShape shape = MeshShape.ofOne().with(one, ones).with(other, others);
        Ranks.local(shape.ranks()).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                for (int i = 0; i < CASES; i++) {
                    Case drawn = new Case(SEED + i, one, other);
                    drawn.check(
                            mesh,
                            "seed " + (SEED + i) + ", " + drawn.shape + " from " + drawn.from + " to " + drawn.to);
                }
            }
        });
    }

    /** Shards of drawn weights have the bits of the weights that one rank draws. */
    @ParameterizedTest
    @CsvSource({"FLOAT32, 0, 1", "BFLOAT16, 1, 0", "FLOAT16, 1, 1", "FLOAT32, 0, 0"})
    void partsAreDrawnAsTheWhole(DType dtype, int first, int second) {
        DevicesNeeded.assume(6);
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, 3).with(MeshDimension.TENSOR, 2);
        Ranks.local(6).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Parameter weight = plan.group("layer").declare("weight", Initializer.normal(0.02f), 37, 11);
            Stream stream = rank.device().stream();
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    Parameters parameters = Parameters.allocate(rank.device(), plan, dtype, 5);
                    Scope scope = rank.device().openScope()) {
                // @start region="sharded"
                Placements placements = Placements.replicated()
                        .with(MeshDimension.SHARD, Placement.shard(first))
                        .with(MeshDimension.TENSOR, Placement.shard(second));
                ShardedTensorMetadata metadata =
                        new ShardedTensorMetadata(dtype, Shape.of(37, 11), mesh.shape(), placements);
                ShardedTensor drawn = ShardedTensor.initialize(
                        mesh, metadata, Initializer.normal(0.02f), new ShardedTensor.Draw(5, "layer.weight"), scope);
                Tensor whole = drawn.full(scope); // each rank calls it
                // @end
                assertArrayEquals(weight.weight().toFloats(stream), whole.toFloats(stream));
                Tensor cut = ShardedTensor.distribute(mesh, weight.weight(), placements, scope)
                        .local();
                assertEquals(cut.shape(), drawn.local().shape());
                assertArrayEquals(cut.toFloats(stream), drawn.local().toFloats(stream));
            }
        });
    }

    private static ShardedTensorMetadata metadata(int sharded) {
        return new ShardedTensorMetadata(
                DType.FLOAT32,
                Shape.of(5, 4),
                MeshShape.ofOne().with(MeshDimension.SHARD, 2),
                Placements.replicated().with(MeshDimension.SHARD, Placement.shard(sharded)));
    }

    @Test
    void whatEachRankHas() {
        ShardedTensorMetadata metadata = metadata(0);
        assertEquals(new ShardedTensorMetadata.Box(Shape.of(0, 0), Shape.of(3, 4)), metadata.box(0));
        assertEquals(new ShardedTensorMetadata.Box(Shape.of(3, 0), Shape.of(2, 4)), metadata.box(1));
        assertEquals("shard=Shard[dimension=0]", metadata.placements().toString());
        assertEquals("replicated", Placements.replicated().toString());
    }

    /** Bytes are stored: the number of a type never changes. */
    @Test
    void everyTypeKeepsItsNumber() {
        DType[] types = {
            DType.BYTE,
            DType.INT16,
            DType.INT32,
            DType.INT64,
            DType.FLOAT32,
            DType.FLOAT16,
            DType.BFLOAT16,
            DType.FLOAT8_E4M3,
            DType.FLOAT8_E5M2,
            DType.INT8,
            DType.UINT32,
            DType.UINT64,
            DType.FLOAT64
        };
        int[] numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 64, 65, 66, 67};
        assertEquals(DType.values().length, types.length);
        for (int i = 0; i < types.length; i++) {
            ShardedTensorMetadata one =
                    new ShardedTensorMetadata(types[i], Shape.of(3), MeshShape.ofOne(), Placements.replicated());
            assertEquals(numbers[i], one.toBytes()[1], types[i].name());
            assertEquals(one, ShardedTensorMetadata.of(one.toBytes()));
        }
    }

    @Test
    void misuse() {
        DevicesNeeded.assume(2);
        assertThrown(
                IllegalArgumentException.class,
                "placements: expected dimensions of FLOAT32[5, 4], got shard=Shard[dimension=2]",
                () -> metadata(2));
        assertThrown(
                IllegalArgumentException.class, "dimension: expected one from 0 to 3, got 4", () -> Placement.shard(4));
        byte[] bytes = metadata(1).toBytes();
        assertThrown(
                IllegalArgumentException.class,
                "bytes: expected metadata of form 1, got form 9",
                () -> ShardedTensorMetadata.of(new byte[] {9}));
        assertThrown(
                IllegalArgumentException.class,
                "bytes: expected metadata of a tensor, got 44 bytes that are none",
                () -> ShardedTensorMetadata.of(Arrays.copyOf(bytes, bytes.length - 1)));
        assertThrown(
                IllegalArgumentException.class,
                "bytes: expected metadata of a tensor, got 2 bytes that are cut short",
                () -> ShardedTensorMetadata.of(Arrays.copyOf(bytes, 2)));
        ShardedTensorMetadata scalar =
                new ShardedTensorMetadata(DType.FLOAT32, Shape.of(), MeshShape.ofOne(), Placements.replicated());
        byte[] negativeRank = scalar.toBytes();
        negativeRank[2] = -1;
        assertThrown(
                IllegalArgumentException.class,
                "bytes: expected metadata of a tensor, got 29 bytes that are none",
                () -> ShardedTensorMetadata.of(negativeRank));
        byte[] noRanks = scalar.toBytes();
        noRanks[7] = 0;
        assertThrown(
                IllegalArgumentException.class,
                "bytes: expected metadata of a tensor, got damaged ones: size: expected at least 1 along PIPELINE, got 0",
                () -> ShardedTensorMetadata.of(noRanks));
        Ranks.local(2).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), metadata(0).mesh());
                    Scope scope = rank.device().openScope()) {
                Tensor local = scope.tensor(DType.FLOAT32, 5, 4);
                assertThrown(
                        IllegalArgumentException.class,
                        "local: expected FLOAT32[" + (3 - rank.index()) + ", 4], rank " + rank.index() + "'s part of "
                                + metadata(0) + ", got FLOAT32[5, 4]",
                        () -> ShardedTensor.of(mesh, metadata(0), local));
                ShardedTensorMetadata elsewhere = new ShardedTensorMetadata(
                        DType.FLOAT32, Shape.of(5, 4), MeshShape.ofOne(), Placements.replicated());
                assertThrown(
                        IllegalArgumentException.class,
                        "metadata: expected one of the mesh shard=2, got one of one rank",
                        () -> ShardedTensor.of(mesh, elsewhere, local));
                ShardedTensorMetadata partial = metadata(0)
                        .withPlacements(Placements.replicated().with(MeshDimension.SHARD, Placement.partial()));
                assertThrown(
                        IllegalArgumentException.class,
                        "metadata: expected floats of FLOAT32, FLOAT16 or BFLOAT16 and no Partial, got " + partial,
                        () -> ShardedTensor.initialize(
                                mesh, partial, Initializer.ones(), new ShardedTensor.Draw(1, "x"), scope));
                ShardedTensor whole = ShardedTensor.distribute(mesh, local, Placements.replicated(), scope);
                assertEquals("ShardedTensor FLOAT32[5, 4], replicated over shard=2, [5, 4] here", whole.toString());
                assertThrown(
                        IllegalArgumentException.class,
                        "placements: expected dimensions of FLOAT32[5, 4], got shard=Shard[dimension=3]",
                        () -> whole.redistribute(
                                Placements.replicated().with(MeshDimension.SHARD, Placement.shard(3)), scope));
            }
        });
    }
}
