package dev.chagres.parameter;

import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The part of a model that one of several ranks keeps: the same part of every group of the plan.
 *
 * <p>Threading: immutable.
 *
 * @param updated the part of which it keeps gradients and the optimizer's state
 * @param weights the part of which it keeps weights, which contains {@code updated}; null if it keeps all weights
 */
public record ParameterShard(Part updated, @Nullable Part weights) {
    /**
     * One of equal parts of a group, in the order of its elements.
     *
     * <p>Threading: immutable.
     *
     * @param index from 0 to count - 1
     * @param count parts of each group
     */
    public record Part(int index, int count) {
        /**
         * Checks the numbers.
         *
         * @throws IllegalArgumentException when there is no such part
         */
        public Part {
            if (count < 1 || index < 0 || index >= count) {
                throw new IllegalArgumentException("index: expected 0 to count - 1, got " + index + " of " + count);
            }
        }

        /** Returns the number of elements of this part of {@code whole}, a multiple of the number of parts. */
        public long of(long whole) {
            return whole / count;
        }

        /** Returns the first element of this part of {@code whole}. */
        public long begin(long whole) {
            return index * of(whole);
        }
    }

    /**
     * Checks that the parts fit.
     *
     * @throws IllegalArgumentException when {@code updated} is no part of {@code weights}
     */
    public ParameterShard {
        Checks.given("updated", updated);
        if (weights != null) {
            int finer = updated.count / weights.count;
            if (finer * weights.count != updated.count || updated.index / finer != weights.index) {
                throw new IllegalArgumentException(
                        "updated: expected a part of weights, " + weights + ", got " + updated);
            }
        }
    }
}
