package dev.chagres.model;

import dev.chagres.internal.Checks;

/**
 * The part of a model that one of several ranks keeps: of every group of the plan the same part, {@code 1 / ranks} of its elements.
 *
 * <p>Threading: immutable.
 *
 * @param rank r, from 0 to ranks - 1
 * @param ranks N
 * @param weights whether weights are shared out, too; gradients and what optimizers keep are
 */
public record ParameterShard(int rank, int ranks, Extent weights) {
    /** How much of each group a rank keeps. */
    public enum Extent {
        /** All of it. */
        WHOLE,
        /** The rank's part. */
        PART
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when there is no such rank
     */
    public ParameterShard {
        Checks.given("weights", weights);
        if (ranks < 1 || rank < 0 || rank >= ranks) {
            throw new IllegalArgumentException("rank: expected 0 to ranks - 1, got " + rank + " of " + ranks);
        }
    }
}
