package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.model.CounterRandom;
import dev.chagres.model.Initializer;
import dev.chagres.sharding.ShardedTensorMetadata.Box;
import java.util.stream.IntStream;

/**
 * A tensor over the ranks of a {@link Mesh}: each has a part of it, all of it, or a summand of it, as its {@link Placements} say.
 *
 * <p>{@link #local} is what this rank has: the box that {@link ShardedTensorMetadata#box} names, row-major, with other sizes on other
 * ranks where they do not divide the tensor's. Methods that return another tensor are called by every rank of the mesh with the same
 * arguments.
 *
 * {@snippet file="dev/chagres/sharding/ShardedTensorTest.java" region="sharded"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: PyTorch's {@code torch.distributed.tensor.DTensor}.
 */
public final class ShardedTensor {
    /** Elements that are drawn at a time. */
    private static final int PIECE = 1 << 20;

    private final Mesh mesh;
    private final ShardedTensorMetadata metadata;
    private final Tensor local;

    private ShardedTensor(Mesh mesh, ShardedTensorMetadata metadata, Tensor local) {
        this.mesh = mesh;
        this.metadata = metadata;
        this.local = local;
    }

    /**
     * Makes a tensor of what each rank has.
     *
     * @param local what {@code metadata} says that this rank has; it stays the caller's
     * @throws IllegalArgumentException when the mesh has another shape than the metadata's, or type, shape or device of {@code local} do
     *     not fit
     */
    public static ShardedTensor of(Mesh mesh, ShardedTensorMetadata metadata, Tensor local) {
        Box box = box(mesh, metadata);
        Checks.on(mesh.world().device().stream(), "local", local);
        if (local.dtype() != metadata.dtype() || !local.shape().equals(box.shape())) {
            throw new IllegalArgumentException("local: expected " + metadata.dtype() + box.shape() + ", rank "
                    + mesh.world().rank() + "'s part of " + metadata + ", got " + Checks.describe(local));
        }
        return new ShardedTensor(mesh, metadata, local);
    }

    /**
     * Enqueues each rank's part of a tensor that every rank has whole, without a collective: of several summands the first rank's is the
     * whole, the others' are 0.
     *
     * @param whole the same on each rank
     * @param scope what has the result's memory, and whose stream copies
     * @throws IllegalArgumentException when the device does not fit, or a dimension is sharded that the tensor has not
     */
    public static ShardedTensor distribute(Mesh mesh, Tensor whole, Placements placements, Scope scope) {
        Checks.on(Checks.given("scope", scope).stream(), "whole", whole);
        Shape shape = whole.shape();
        ShardedTensorMetadata all = new ShardedTensorMetadata(
                whole.dtype(), shape, Checks.given("mesh", mesh).shape(), Placements.replicated());
        return of(mesh, all, whole).redistribute(placements, scope);
    }

    /**
     * Draws each rank's part of a tensor: the elements that {@link dev.chagres.model.Parameters} of one rank begin a parameter of this name
     * and shape with, bit for bit. The whole tensor exists nowhere. Waits.
     *
     * @param metadata of floats, without summands
     * @param draw what the numbers follow from, the same on each rank
     * @param scope what has the result's memory
     * @throws IllegalArgumentException when the mesh has another shape than the metadata's, the type is no float, or a placement is Partial
     */
    public static ShardedTensor initialize(
            Mesh mesh, ShardedTensorMetadata metadata, Initializer initializer, Draw draw, Scope scope) {
        Box box = box(mesh, metadata);
        Checks.given("initializer", initializer);
        Checks.given("draw", draw);
        if (!metadata.dtype().isFloat() || metadata.placements().isPartial()) {
            throw new IllegalArgumentException(
                    "metadata: expected floats of FLOAT32, FLOAT16 or BFLOAT16 and no Partial, got " + metadata);
        }
        Tensor local = Checks.given("scope", scope).tensor(metadata.dtype(), box.shape());
        long key = CounterRandom.key(draw.seed, draw.name);
        long count = local.count();
        for (long begin = 0; begin < count; begin += PIECE) {
            long first = begin;
            float[] values = new float[(int) Math.min(PIECE, count - begin)];
            IntStream.range(0, values.length)
                    .parallel()
                    .forEach(i -> values[i] = initializer.value(key, element(metadata.shape(), box, first + i)));
            try (Scope piece = scope.open()) {
                piece.view(local, begin, values.length).set(scope.stream(), values);
            }
        }
        return new ShardedTensor(mesh, metadata, local);
    }

    /**
     * What the numbers of a drawn tensor follow from.
     *
     * <p>Threading: immutable.
     *
     * @param seed equal seeds give equal numbers
     * @param name of the parameter
     */
    public record Draw(long seed, String name) {
        /** Checks that the name is there. */
        public Draw {
            Checks.given("name", name);
        }
    }

    /** Returns the number in the whole tensor, row-major, of element {@code index} of a box. */
    private static long element(Shape whole, Box box, long index) {
        long left = index;
        long element = 0;
        long stride = 1;
        for (int i = whole.rank() - 1; i >= 0; i--) {
            long size = box.shape().size(i);
            element += (box.offsets().size(i) + left % size) * stride;
            left /= size;
            stride *= whole.size(i);
        }
        return element;
    }

    private static Box box(Mesh mesh, ShardedTensorMetadata metadata) {
        if (!Checks.given("metadata", metadata)
                .mesh()
                .equals(Checks.given("mesh", mesh).shape())) {
            throw new IllegalArgumentException(
                    "metadata: expected one of the mesh " + mesh.shape() + ", got one of " + metadata.mesh());
        }
        return metadata.box(mesh.world().rank());
    }

    /** Returns what the tensor is, and which elements each rank has. */
    public ShardedTensorMetadata metadata() {
        return metadata;
    }

    /** Returns the type of the elements. */
    public DType dtype() {
        return metadata.dtype();
    }

    /** Returns the shape of the whole tensor. */
    public Shape shape() {
        return metadata.shape();
    }

    /** Returns what this rank has. */
    public Tensor local() {
        return local;
    }

    /**
     * Enqueues the whole tensor on every rank; each rank calls it.
     *
     * @param scope what has the result's memory, and whose stream the collectives run on
     * @throws IllegalStateException when the mesh is closed
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public Tensor full(Scope scope) {
        return redistribute(Placements.replicated(), scope).local;
    }

    /**
     * Enqueues the same tensor, placed otherwise; each rank calls it. Along a dimension of the mesh
     *
     * <ul>
     *   <li>stretches become the whole by an all-gather, stretches along another dimension of the tensor by an all-to-all;
     *   <li>summands become the whole by an all-reduce, stretches by a reduce-scatter;
     *   <li>the whole becomes stretches, or summands of which one is the whole and the others are 0, without a collective.
     * </ul>
     *
     * Where two dimensions of the mesh cut one dimension of the tensor and the first one changes, the second one's stretches are gathered
     * before. Blocks of equal size travel, with room for the largest stretch.
     *
     * @param scope what has the result's memory, and whose stream the collectives run on
     * @throws IllegalArgumentException when a dimension is sharded that the tensor has not, or the scope is of another device
     * @throws IllegalStateException when the mesh is closed
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public ShardedTensor redistribute(Placements placements, Scope scope) {
        ShardedTensorMetadata target = metadata.withPlacements(placements);
        Checks.on(Checks.given("scope", scope).stream(), "local", local);
        Tensor result = scope.tensor(dtype(), target.box(mesh.world().rank()).shape());
        try (Scope room = scope.open()) {
            new Redistribution(mesh, room).run(metadata, local, placements, result);
        }
        return new ShardedTensor(mesh, target, result);
    }

    @Override
    public String toString() {
        return "ShardedTensor " + metadata.dtype() + metadata.shape() + ", " + metadata.placements() + " over "
                + metadata.mesh() + ", " + local.shape() + " here";
    }
}
