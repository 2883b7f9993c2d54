package dev.chagres.mesh;

import dev.chagres.Rectangle;
import dev.chagres.Scope;
import dev.chagres.Shape;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.mesh.Placement.Partial;
import dev.chagres.mesh.Placement.Replicate;
import dev.chagres.mesh.Placement.Shard;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.Reduction;
import java.util.ArrayList;
import java.util.List;

/**
 * Changes the placement of a tensor, along one dimension of the mesh after the other, with at most one collective for each.
 *
 * <p>Slices may be of unequal lengths; collectives move equal blocks with room for the longest slice.
 *
 * <p>Threading: the device's thread.
 */
final class Redistribution {
    private final Mesh mesh;
    private final Stream stream;
    private final Scope room;

    /** Allocates intermediate tensors in {@code room}. */
    Redistribution(Mesh mesh, Scope room) {
        this.mesh = mesh;
        this.room = room;
        stream = room.stream();
    }

    /** One change along one dimension of the mesh. */
    private record Step(MeshDimension along, ShardedTensorMetadata before, ShardedTensorMetadata after) {}

    /**
     * Returns the steps, the same on each rank. Dimensions that cut slices which another dimension changes are gathered first, from the
     * last dimension to the first; then each dimension changes, from the first to the last.
     */
    private static List<Step> steps(ShardedTensorMetadata from, Placements target) {
        List<Step> steps = new ArrayList<>();
        ShardedTensorMetadata now = from;
        for (MeshDimension dimension : List.of(MeshDimension.values()).reversed()) {
            if (isCutAnew(dimension, from.placements(), target)) {
                now = add(steps, dimension, now, Placement.replicate());
            }
        }
        for (MeshDimension dimension : MeshDimension.values()) {
            now = add(steps, dimension, now, target.along(dimension));
        }
        return steps;
    }

    private static ShardedTensorMetadata add(
            List<Step> steps, MeshDimension along, ShardedTensorMetadata now, Placement next) {
        if (now.placements().along(along).equals(next)) {
            return now;
        }
        ShardedTensorMetadata after = now.withPlacements(now.placements().with(along, next));
        steps.add(new Step(along, now, after));
        return after;
    }

    /** Returns whether an earlier dimension changes the slices that {@code dimension} cuts. */
    private static boolean isCutAnew(MeshDimension dimension, Placements from, Placements target) {
        Placement cut = from.along(dimension);
        if (!(cut instanceof Shard)) {
            return false;
        }
        for (MeshDimension earlier : MeshDimension.values()) {
            if (earlier == dimension) {
                return false;
            }
            Placement before = from.along(earlier);
            Placement after = target.along(earlier);
            if (!before.equals(after) && (cut.equals(before) || cut.equals(after))) {
                return true;
            }
        }
        return false;
    }

    /** Enqueues {@code result}, which {@code target} places, of what {@code from} describes; each rank calls it. */
    void run(ShardedTensorMetadata from, Tensor local, Placements target, Tensor result) {
        List<Step> steps = steps(from, target);
        if (steps.isEmpty()) {
            result.copyFrom(stream, local);
            return;
        }
        Tensor now = local;
        for (Step step : steps) {
            Tensor next = step == steps.getLast()
                    ? result
                    : room.tensor(now.dtype(), step.after.box(rank()).shape());
            run(step, now, next);
            now = next;
        }
    }

    private int rank() {
        return mesh.world().rank();
    }

    private void run(Step step, Tensor from, Tensor to) {
        if (mesh.size(step.along) == 1) {
            to.copyFrom(stream, from);
            return;
        }
        Placement before = step.before.placements().along(step.along);
        Placement after = step.after.placements().along(step.along);
        // The box without the cut of this dimension: the same for all ranks along it.
        Placements uncut = step.before.placements().with(step.along, Placement.replicate());
        Shape whole = step.before.withPlacements(uncut).box(rank()).shape();
        switch (before) {
            case Replicate() -> {
                switch (after) {
                    case Shard(int dimension) -> cut(from, Slices.of(whole, dimension), step.along, to);
                    case Partial() -> {
                        if (mesh.coordinate(step.along) == 0) {
                            to.copyFrom(stream, from);
                        } else {
                            to.zero(stream);
                        }
                    }
                    case Replicate() -> throw new AssertionError("no step");
                }
            }
            case Partial() -> {
                switch (after) {
                    case Shard(int dimension) -> reduceScatter(from, Slices.of(whole, dimension), step.along, to);
                    case Replicate() -> {
                        if (to.count() > 0) {
                            mesh.along(step.along).allReduce(from, to, Reduction.SUM, stream);
                        }
                    }
                    case Partial() -> throw new AssertionError("no step");
                }
            }
            case Shard(int dimension) -> {
                switch (after) {
                    case Shard(int other) -> allToAll(from, whole, dimension, other, step.along, to);
                    case Replicate() -> gather(from, Slices.of(whole, dimension), step.along, to);
                    case Partial() -> fill(from, Slices.of(whole, dimension), step.along, to);
                }
            }
        }
    }

    private OwnedSlice stretch(Slices slices, MeshDimension along, int coordinate) {
        return OwnedSlice.of(slices.size(), mesh.size(along), coordinate);
    }

    private void cut(Tensor from, Slices slices, MeshDimension along, Tensor to) {
        OwnedSlice own = stretch(slices, along, mesh.coordinate(along));
        Slices.copy(to, slices.alone(0, own.count()), from, slices.rectangle(0, own.begin(), own.count()), stream);
    }

    /** The term of elements of other ranks is 0. */
    private void fill(Tensor from, Slices slices, MeshDimension along, Tensor to) {
        OwnedSlice own = stretch(slices, along, mesh.coordinate(along));
        to.zero(stream);
        Slices.copy(to, slices.rectangle(0, own.begin(), own.count()), from, slices.alone(0, own.count()), stream);
    }

    private long block(Slices slices, MeshDimension along) {
        return slices.outer() * OwnedSlice.largest(slices.size(), mesh.size(along)) * slices.inner();
    }

    private void reduceScatter(Tensor from, Slices slices, MeshDimension along, Tensor to) {
        int ranks = mesh.size(along);
        long block = block(slices, along);
        if (block == 0) {
            return;
        }
        Communicator among = mesh.along(along);
        if (slices.outer() == 1 && block * ranks == from.count()) {
            among.reduceScatter(from, to, Reduction.SUM, stream);
            return;
        }
        Tensor blocks = room.tensor(from.dtype(), block * ranks);
        blocks.zero(stream); // Padding is summed, too, and must not be undefined.
        for (int i = 0; i < ranks; i++) {
            OwnedSlice one = stretch(slices, along, i);
            Rectangle source = slices.rectangle(0, one.begin(), one.count());
            Slices.copy(blocks, slices.alone(i * block, one.count()), from, source, stream);
        }
        Tensor sum = room.tensor(from.dtype(), block);
        among.reduceScatter(blocks, sum, Reduction.SUM, stream);
        copyBegin(to, sum);
    }

    private void gather(Tensor from, Slices slices, MeshDimension along, Tensor to) {
        int ranks = mesh.size(along);
        long block = block(slices, along);
        if (block == 0) {
            return;
        }
        Communicator among = mesh.along(along);
        if (slices.outer() == 1 && block * ranks == to.count()) {
            among.allGather(from, to, stream);
            return;
        }
        Tensor own = room.tensor(from.dtype(), block);
        Tensor blocks = room.tensor(from.dtype(), block * ranks);
        fillBegin(own, from);
        among.allGather(own, blocks, stream);
        for (int i = 0; i < ranks; i++) {
            OwnedSlice one = stretch(slices, along, i);
            Rectangle target = slices.rectangle(0, one.begin(), one.count());
            Slices.copy(to, target, blocks, slices.alone(i * block, one.count()), stream);
        }
    }

    /** A tensor that was sliced along {@code before} is sliced along {@code after}: rank q gets its part of this rank's slice. */
    private void allToAll(Tensor from, Shape whole, int before, int after, MeshDimension along, Tensor to) {
        int ranks = mesh.size(along);
        Slices joined = Slices.of(whole, before);
        Slices split = Slices.of(whole, after);
        OwnedSlice had = stretch(joined, along, mesh.coordinate(along));
        OwnedSlice gets = stretch(split, along, mesh.coordinate(along));
        long others = 1;
        for (int i = 0; i < whole.rank(); i++) {
            others *= i == before || i == after ? 1 : whole.size(i);
        }
        long block = others * OwnedSlice.largest(joined.size(), ranks) * OwnedSlice.largest(split.size(), ranks);
        if (block == 0) {
            return;
        }
        Slices mine = Slices.of(resized(whole, before, had.count()), after);
        Tensor send = room.tensor(from.dtype(), block * ranks);
        send.zero(stream); // Padding between blocks is sent, too.
        for (int i = 0; i < ranks; i++) {
            OwnedSlice one = stretch(split, along, i);
            Rectangle source = mine.rectangle(0, one.begin(), one.count());
            Slices.copy(send, mine.alone(i * block, one.count()), from, source, stream);
        }
        Tensor received = room.tensor(from.dtype(), block * ranks);
        mesh.along(along).allToAll(send, received, stream);
        Slices result = Slices.of(resized(whole, after, gets.count()), before);
        for (int i = 0; i < ranks; i++) {
            OwnedSlice one = stretch(joined, along, i);
            Rectangle target = result.rectangle(0, one.begin(), one.count());
            Slices.copy(to, target, received, result.alone(i * block, one.count()), stream);
        }
    }

    private static Shape resized(Shape shape, int dimension, long size) {
        long[] sizes = shape.sizes();
        sizes[dimension] = size;
        return Shape.of(sizes);
    }

    /** Enqueues a copy of {@code from} to the beginning of {@code to}, whose other elements become 0. */
    private void fillBegin(Tensor to, Tensor from) {
        if (from.count() < to.count()) {
            to.zero(stream);
        }
        Rectangle all = new Rectangle(0, 1, from.count(), from.count());
        Slices.copy(to, all, from, all, stream);
    }

    private void copyBegin(Tensor to, Tensor from) {
        Rectangle all = new Rectangle(0, 1, to.count(), to.count());
        Slices.copy(to, all, from, all, stream);
    }

    /** Slices of a tensor along one dimension, seen as {@code [outer, n, inner]}. */
    private record Slices(long outer, long size, long inner) {
        static Slices of(Shape shape, int dimension) {
            long outer = 1;
            long inner = 1;
            for (int i = 0; i < shape.rank(); i++) {
                if (i < dimension) {
                    outer *= shape.size(i);
                } else if (i > dimension) {
                    inner *= shape.size(i);
                }
            }
            return new Slices(outer, shape.size(dimension), inner);
        }

        /** Returns {@code count} slices from {@code begin} on, in memory that begins with element {@code offset}. */
        Rectangle rectangle(long offset, long begin, long count) {
            return new Rectangle(offset + begin * inner, outer, count * inner, size * inner);
        }

        /** Returns a tensor of {@code count} slices alone that lies in memory from element {@code offset} on. */
        Rectangle alone(long offset, long count) {
            return new Rectangle(offset, outer, count * inner, count * inner);
        }

        /** Enqueues a copy of one part into another; nothing where it is empty. */
        static void copy(Tensor target, Rectangle to, Tensor source, Rectangle from, Stream stream) {
            if (to.rows() > 0 && to.columns() > 0) {
                target.copyFrom(stream, to, source, from);
            }
        }
    }
}
