package dev.chagres.mesh;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.mesh.ShardedTensorMetadata.Box;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import java.util.stream.IntStream;

/**
 * A tensor over the ranks of a {@link Mesh}: each has a part of it, the whole of it, or a term of a sum, as its {@link Placements} say.
 *
 * <p>{@link #local} is this rank's part: the box of {@link ShardedTensorMetadata#box}, row-major. Its sizes may differ from rank to rank if
 * the ranks do not divide the tensor's. Methods that return another tensor are called by every rank of the mesh with the same arguments.
 *
 * {@snippet file="dev/chagres/mesh/ShardedTensorTest.java" region="sharded"}
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
     * Makes a tensor from each rank's part.
     *
     * @param local this rank's part according to {@code metadata}; the caller keeps owning its memory
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
     * Enqueues each rank's part of a tensor that every rank has whole, without a collective. For a sum, the first rank has the whole tensor
     * as its term and the others have 0.
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
     * Draws each rank's part of a tensor: the initial values of a parameter of this name and shape in {@link dev.chagres.parameter.Parameters}
     * of one rank, bit for bit. No rank holds the whole tensor. Waits.
     *
     * @param metadata of floats, without Partial placements
     * @param draw seed and name, the same on each rank
     * @param scope what has the result's memory
     * @throws IllegalArgumentException when the mesh has another shape than the metadata's, the type is no float, or a placement is Partial
     */
    public static ShardedTensor initialize(
            Mesh mesh, ShardedTensorMetadata metadata, Initializer initializer, Draw draw, Scope scope) {
        Box box = box(mesh, metadata);
        Checks.given("initializer", initializer, "draw", draw);
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
     * Seed and name from which the numbers of a drawn tensor follow.
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

    /** Returns the row-major index in the whole tensor of element {@code index} of a box. */
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

    /** Returns type, shape and placements, from which each rank's elements follow. */
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

    /** Returns this rank's part. */
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
     * Enqueues the same tensor with other placements; each rank calls it. Along a dimension of the mesh
     *
     * <ul>
     *   <li>stretches become the whole by an all-gather, stretches along another dimension of the tensor by an all-to-all;
     *   <li>summands become the whole by an all-reduce, stretches by a reduce-scatter;
     *   <li>the whole becomes stretches, or summands of which one is the whole and the others are 0, without a collective.
     * </ul>
     *
     * If two dimensions of the mesh split one dimension of the tensor and the placement along the first one changes, the slices along the
     * second one are gathered before. Slices are padded to the longest one.
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
