package dev.chagres.sharding;

import dev.chagres.internal.RankNames;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Agreement;
import dev.chagres.nccl.RankFailedException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Which sharded copies of a model still have all their ranks when some have failed.
 *
 * <p>Threading: immutable.
 *
 * @param shape of the mesh before
 * @param left the ranks that are left of it
 * @param copies those that are whole, by their coordinates
 */
record WholeReplicas(MeshShape shape, Agreement left, List<Integer> copies) {
    static WholeReplicas of(MeshShape shape, Agreement left) {
        List<Integer> whole = new ArrayList<>();
        for (int copy = 0; copy < shape.size(MeshDimension.REPLICATE); copy++) {
            if (left.ranks().containsAll(ranks(shape, copy))) {
                whole.add(copy);
            }
        }
        return new WholeReplicas(shape, left, List.copyOf(whole));
    }

    private static List<Integer> ranks(MeshShape shape, int copy) {
        return IntStream.range(0, shape.ranks())
                .filter(rank -> shape.coordinate(MeshDimension.REPLICATE, rank) == copy)
                .boxed()
                .toList();
    }

    /** Returns whether every rank that is left belongs to one of them. */
    boolean areAllLeft() {
        return left.ranks().stream().allMatch(rank -> copies.contains(shape.coordinate(MeshDimension.REPLICATE, rank)));
    }

    /** Returns the mesh of those copies. */
    MeshShape remaining() {
        return shape.with(MeshDimension.REPLICATE, copies.size());
    }

    /**
     * Checks that a rank is one of a whole copy.
     *
     * @throws RankFailedException when it is not
     */
    void ensureHas(int rank) {
        int copy = shape.coordinate(MeshDimension.REPLICATE, rank);
        if (!copies.contains(copy)) {
            List<Integer> lost = Arrays.stream(left.excluded())
                    .filter(other -> shape.coordinate(MeshDimension.REPLICATE, other) == copy)
                    .boxed()
                    .toList();
            List<Integer> others =
                    copies.stream().flatMap(one -> ranks(shape, one).stream()).toList();
            throw new RankFailedException(
                    "rank " + rank + " leaves: copy " + copy + " of the model, of which it has a part, has lost "
                            + RankNames.of(lost) + "; " + RankNames.of(others) + " go on with whole copies",
                    lost,
                    null);
        }
    }
}
