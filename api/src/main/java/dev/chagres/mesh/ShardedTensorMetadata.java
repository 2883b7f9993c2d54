package dev.chagres.mesh;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.internal.Checks;
import dev.chagres.mesh.Placement.Partial;
import dev.chagres.mesh.Placement.Replicate;
import dev.chagres.mesh.Placement.Shard;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;

/**
 * Type, shape and placements of a tensor over several ranks. It is the same on every rank, and can be sent and stored as bytes.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: PyTorch's {@code DTensorSpec}.
 *
 * @param dtype type of the elements
 * @param shape of the whole tensor
 * @param mesh the ranks
 * @param placements the parts that they have
 */
public record ShardedTensorMetadata(DType dtype, Shape shape, MeshShape mesh, Placements placements) {
    /** First byte of {@link #toBytes}; it changes with the format. */
    private static final byte FORM = 1;

    private static final byte REPLICATE = 0;
    private static final byte PARTIAL = 1;
    /** The first of the numbers for shards, one for each dimension of a tensor. */
    private static final byte SHARD = 2;

    /**
     * Checks that the placements fit the tensor.
     *
     * @throws IllegalArgumentException when a dimension is sharded that the tensor has not
     */
    public ShardedTensorMetadata {
        Checks.given("dtype", dtype, "shape", shape, "mesh", mesh, "placements", placements);
        for (MeshDimension dimension : MeshDimension.values()) {
            if (placements.along(dimension) instanceof Shard(int sharded) && sharded >= shape.rank()) {
                throw new IllegalArgumentException(
                        "placements: expected dimensions of " + dtype + shape + ", got " + placements);
            }
        }
    }

    /**
     * A box of elements of a tensor.
     *
     * <p>Threading: immutable.
     *
     * @param offsets its first element along each dimension
     * @param shape its sizes
     */
    public record Box(Shape offsets, Shape shape) {
        /** Checks that both are there. */
        public Box {
            Checks.given("offsets", offsets, "shape", shape);
        }
    }

    /**
     * Returns which elements, or terms of which elements, {@code rank} has.
     *
     * @throws IllegalArgumentException when the mesh has no such rank
     */
    public Box box(int rank) {
        long[] offsets = new long[shape.rank()];
        long[] sizes = shape.sizes();
        for (MeshDimension dimension : MeshDimension.values()) {
            int coordinate = mesh.coordinate(dimension, rank);
            if (placements.along(dimension) instanceof Shard(int sharded)) {
                OwnedSlice stretch = OwnedSlice.of(sizes[sharded], mesh.size(dimension), coordinate);
                offsets[sharded] += stretch.begin();
                sizes[sharded] = stretch.count();
            }
        }
        return new Box(Shape.of(offsets), Shape.of(sizes));
    }

    /** Returns the same with other placements. */
    public ShardedTensorMetadata withPlacements(Placements newPlacements) {
        return new ShardedTensorMetadata(dtype, shape, mesh, newPlacements);
    }

    /** Returns this as bytes, for {@link #of} of this and later versions. */
    public byte[] toBytes() {
        MeshDimension[] dimensions = MeshDimension.values();
        ByteBuffer bytes = ByteBuffer.allocate(4 + Long.BYTES * shape.rank() + (Integer.BYTES + 1) * dimensions.length);
        bytes.put(FORM).put(number(dtype)).put((byte) shape.rank()).put((byte) dimensions.length);
        for (long size : shape.sizes()) {
            bytes.putLong(size);
        }
        for (MeshDimension dimension : dimensions) {
            bytes.putInt(mesh.size(dimension));
            bytes.put(
                    switch (placements.along(dimension)) {
                        case Replicate() -> REPLICATE;
                        case Partial() -> PARTIAL;
                        case Shard(int sharded) -> (byte) (SHARD + sharded);
                    });
        }
        return bytes.array();
    }

    /**
     * Reads what {@link #toBytes} has written.
     *
     * @throws IllegalArgumentException when the bytes are no such metadata, or those of a later version
     */
    public static ShardedTensorMetadata of(byte[] bytes) {
        ByteBuffer left = ByteBuffer.wrap(Checks.given("bytes", bytes));
        try {
            byte form = left.get();
            if (form != FORM) {
                throw new IllegalArgumentException("bytes: expected metadata of form " + FORM + ", got form " + form);
            }
            DType dtype = dtype(left.get());
            int rank = left.get();
            int dimensions = left.get();
            if (rank < 0
                    || rank > Shape.MAX_RANK
                    || dimensions != MeshDimension.values().length
                    || left.remaining() != Long.BYTES * rank + (Integer.BYTES + 1) * dimensions) {
                throw new IllegalArgumentException(
                        "bytes: expected metadata of a tensor, got " + bytes.length + " bytes that are none");
            }
            return read(dtype, rank, left);
        } catch (BufferUnderflowException tooFew) {
            throw new IllegalArgumentException(
                    "bytes: expected metadata of a tensor, got " + bytes.length + " bytes that are cut short", tooFew);
        }
    }

    private static ShardedTensorMetadata read(DType dtype, int rank, ByteBuffer left) {
        long[] sizes = new long[rank];
        for (int i = 0; i < rank; i++) {
            sizes[i] = left.getLong();
        }
        MeshShape mesh = MeshShape.ofOne();
        Placements placements = Placements.replicated();
        try {
            for (MeshDimension dimension : MeshDimension.values()) {
                mesh = mesh.with(dimension, left.getInt());
                placements = placements.with(dimension, placement(left.get()));
            }
            return new ShardedTensorMetadata(dtype, Shape.of(sizes), mesh, placements);
        } catch (IllegalArgumentException damaged) {
            throw new IllegalArgumentException(
                    "bytes: expected metadata of a tensor, got damaged ones: " + damaged.getMessage(), damaged);
        }
    }

    /** Returns the number of a type: Transformer Engine's, if it has the type. It must never change, since bytes are stored. */
    private static byte number(DType dtype) {
        return switch (dtype) {
            case INT8 -> 64;
            case UINT32 -> 65;
            case UINT64 -> 66;
            case FLOAT64 -> 67;
            case BYTE, INT16, INT32, INT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2 -> (byte) dtype.code();
        };
    }

    private static DType dtype(byte code) {
        for (DType type : DType.values()) {
            if (number(type) == code) {
                return type;
            }
        }
        throw new IllegalArgumentException("bytes: expected the number of a type, got " + code);
    }

    private static Placement placement(byte code) {
        return switch (code) {
            case REPLICATE -> Placement.replicate();
            case PARTIAL -> Placement.partial();
            default -> Placement.shard(code - SHARD);
        };
    }
}
