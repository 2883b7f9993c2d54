package dev.chagres.sharding;

import dev.chagres.Shape;

/**
 * What the ranks along one dimension of a {@link Mesh} have of a tensor.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: PyTorch's {@code torch.distributed.tensor.placement_types}.
 */
public sealed interface Placement {
    /**
     * Each has a stretch along one dimension of the tensor: of n elements and N ranks, rank r has those from {@code r c} to before
     * {@code (r + 1) c}, where c is n / N rounded up; the last ranks have fewer, or none.
     *
     * @param dimension of the tensor, from 0 on
     */
    record Shard(int dimension) implements Placement {
        /**
         * Checks the number.
         *
         * @throws IllegalArgumentException when a tensor can have no such dimension
         */
        public Shard {
            if (dimension < 0 || dimension >= Shape.MAX_RANK) {
                throw new IllegalArgumentException(
                        "dimension: expected one from 0 to " + (Shape.MAX_RANK - 1) + ", got " + dimension);
            }
        }
    }

    /** Each has all. */
    record Replicate() implements Placement {}

    /** Each has a summand of every element. */
    record Partial() implements Placement {}

    /**
     * Returns the placement in which each rank has a stretch along {@code dimension}.
     *
     * @throws IllegalArgumentException when a tensor can have no such dimension
     */
    static Placement shard(int dimension) {
        return new Shard(dimension);
    }

    /** Returns the placement in which each rank has the whole tensor. */
    static Placement replicate() {
        return new Replicate();
    }

    /** Returns the placement in which each rank has a summand of every element. */
    static Placement partial() {
        return new Partial();
    }
}
