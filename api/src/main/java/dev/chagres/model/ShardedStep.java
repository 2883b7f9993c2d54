package dev.chagres.model;

import dev.chagres.Tensor;

/**
 * For sharding: what a step with parameters whose gradients are shared out needs of the other ranks.
 *
 * <p>Threading: the device's thread.
 */
public interface ShardedStep {
    /**
     * Enqueues {@code norm = sqrt(sum over ranks of norm^2)}.
     *
     * @param norm FLOAT32 [1]: that of this rank's part
     * @param skip INT32 [1]: set to 1 where a rank's norm is not finite
     */
    void normOverRanks(Tensor norm, Tensor skip);
}
