package dev.chagres.mesh;

import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Closing;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.nccl.Communicator;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Ranks in a grid of named dimensions: each rank has a coordinate along each dimension, and a communicator of the ranks that differ from it
 * in that coordinate alone.
 *
 * <p>Ranks are numbered with the last dimension of {@link MeshDimension} running fastest, so that ranks of one {@link MeshDimension#TENSOR}
 * group, which communicate most, are neighbours: with shard 2 and tensor 2, ranks 0 and 1 are one tensor group, ranks 0 and 2 one shard
 * group.
 *
 * {@snippet file="dev/chagres/sharding/CollectivesExampleTest.java" region="mesh"}
 *
 * <p>Threading: the device's thread.
 */
public final class Mesh implements AutoCloseable {
    private final MeshShape shape;
    private final Communicator world;
    private final int rank;
    private final Device device;
    private final Map<MeshDimension, Communicator> communicators = new EnumMap<>(MeshDimension.class);
    /** Communicators along several dimensions, made at the first call. */
    private final Map<Set<MeshDimension>, Communicator> combined = new LinkedHashMap<>();

    private Mesh(MeshShape shape, Communicator world) {
        this.shape = shape;
        this.world = world;
        rank = world.rank();
        device = world.device();
    }

    /**
     * Makes this rank's communicators, one for each dimension; each rank of {@code world} calls it.
     *
     * @param world all ranks; must stay open as long as the mesh
     * @param shape as many ranks as {@code world} has
     * @throws IllegalArgumentException when the numbers of ranks differ
     * @throws IllegalStateException on a rank that detects that its shape differs from that of other ranks
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static Mesh of(Communicator world, MeshShape shape) {
        if (Checks.given("shape", shape).ranks() != Checks.given("world", world).ranks()) {
            throw new IllegalArgumentException("shape: expected " + world.ranks() + " ranks, as " + world + " has, got "
                    + shape.ranks() + " of " + shape);
        }
        Mesh mesh = new Mesh(shape, world);
        try {
            for (MeshDimension dimension : MeshDimension.values()) {
                mesh.split(world, dimension);
            }
            OpenMeshes.of(mesh.device).add(mesh);
        } catch (RuntimeException failure) {
            try {
                mesh.close();
            } catch (RuntimeException later) {
                failure.addSuppressed(later);
            }
            throw failure;
        }
        return mesh;
    }

    private void split(Communicator world, MeshDimension dimension) {
        Communicator made = split(world, Set.of(dimension));
        communicators.put(dimension, made);
        if (made.ranks() != size(dimension) || made.rank() != coordinate(dimension)) {
            throw new IllegalStateException("shape: expected the same on all ranks, got " + shape + " on rank " + rank
                    + " and another on others, in which it would be rank " + made.rank() + " of " + made.ranks()
                    + " along " + dimension);
        }
    }

    private Communicator split(Communicator world, Set<MeshDimension> dimensions) {
        // Ranks form one group if their numbers with these coordinates set to 0 are equal.
        int color = rank;
        for (MeshDimension dimension : dimensions) {
            color -= shape.coordinate(dimension, rank) * shape.stride(dimension);
        }
        String name = dimensions.stream()
                .map(dimension -> dimension.name().toLowerCase(Locale.ROOT))
                .collect(Collectors.joining("-"));
        return world.split(color, rank, world.config().withName(name));
    }

    /** Returns the open mesh whose communicator this is, of some or all of its ranks; null where there is none. */
    public static @Nullable Mesh owning(Communicator communicator) {
        return OpenMeshes.of(Checks.given("communicator", communicator).device()).open.stream()
                .filter(mesh -> mesh.made(communicator))
                .findFirst()
                .orElse(null);
    }

    private boolean made(Communicator communicator) {
        return world == communicator
                || communicators.containsValue(communicator)
                || combined.containsValue(communicator);
    }

    /** Returns the sizes. */
    public MeshShape shape() {
        return shape;
    }

    /** Returns the communicator of all ranks. */
    public Communicator world() {
        return world;
    }

    /** Returns the number of ranks along {@code dimension}. */
    public int size(MeshDimension dimension) {
        return shape.size(dimension);
    }

    /** Returns this rank's coordinate along {@code dimension}, from 0 on. */
    public int coordinate(MeshDimension dimension) {
        return shape.coordinate(dimension, rank);
    }

    /** Returns the communicator of the ranks along {@code dimension}; this rank's number in it is its coordinate. */
    public Communicator along(MeshDimension dimension) {
        Communicator communicator = communicators.get(Checks.given("dimension", dimension));
        if (communicator == null) {
            throw new IllegalStateException("the mesh " + shape + " is closed");
        }
        return communicator;
    }

    /**
     * Returns the communicator of the ranks that differ from this one in coordinates along these dimensions alone, numbered as in the mesh.
     * It is made by the first call, and closed with the mesh. Each rank of the mesh must make the same calls in the same order.
     *
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public Communicator along(MeshDimension first, MeshDimension second, MeshDimension... more) {
        Set<MeshDimension> several = EnumSet.of(Checks.given("first", first), Checks.given("second", second));
        several.addAll(List.of(Checks.givenAll("more", more)));
        Communicator one = along(several.iterator().next()); // of one rank, where none is longer
        several.removeIf(dimension -> shape.size(dimension) == 1);
        if (several.size() <= 1) {
            return several.isEmpty() ? one : along(several.iterator().next());
        }
        long ranks = several.stream().mapToLong(shape::size).reduce(1, (a, b) -> a * b);
        return ranks == shape.ranks() ? world : combined.computeIfAbsent(several, all -> split(world, all));
    }

    /**
     * Closes the communicators, newest first. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, or inside {@link Communicator#group}
     */
    @Override
    public void close() {
        Inside.state(device).ensureCloses();
        List<Communicator> open = new ArrayList<>(communicators.values());
        open.addAll(combined.values());
        communicators.clear();
        combined.clear();
        OpenMeshes.of(device).remove(this);
        Closing.newestFirst(open);
    }

    @Override
    public String toString() {
        return "mesh " + shape + ", rank " + rank;
    }

    /** The open meshes of one device. */
    private static final class OpenMeshes implements AutoCloseable {
        private static final DeviceState.Attachment<OpenMeshes> OF_DEVICE =
                new DeviceState.Attachment<>(_ -> new OpenMeshes());

        private final List<Mesh> open = new ArrayList<>();

        static OpenMeshes of(Device device) {
            return Inside.state(device).get(OF_DEVICE);
        }

        void add(Mesh mesh) {
            open.add(mesh);
        }

        void remove(Mesh mesh) {
            open.remove(mesh);
        }

        @Override
        public void close() {
            open.clear();
        }
    }
}
