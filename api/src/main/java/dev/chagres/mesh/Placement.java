package dev.chagres.mesh;

import dev.chagres.Shape;

/**
 * The parts of a tensor that the ranks along one dimension of a {@link Mesh} have.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: PyTorch's {@code torch.distributed.tensor.placement_types}.
 */
public sealed interface Placement {
    /**
     * Each rank has a slice along one dimension of the tensor: rank r of N has, of n elements, those from {@code r c} to before {@code (r +
     * 1) c}, where c is n / N rounded up; the last ranks have fewer, or none.
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

    /** Each rank has the whole tensor. */
    record Replicate() implements Placement {}

    /** Each rank has a term of the sum of every element. */
    record Partial() implements Placement {}

    /**
     * Returns the placement in which each rank has a slice along {@code dimension}.
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

    /** Returns the placement in which each rank has a term of the sum of every element. */
    static Placement partial() {
        return new Partial();
    }
}
