package dev.chagres.parallel;

import dev.chagres.Tensor;

/**
 * For sharding: the reduction over ranks that a step with sharded gradients needs.
 *
 * <p>Threading: the device's thread.
 */
public interface NormReduction {
    /**
     * Enqueues {@code norm = sqrt(sum over ranks of norm^2)}.
     *
     * @param norm FLOAT32 [1]: the norm of this rank's part
     * @param skip INT32 [1]: set to 1 where a rank's norm is not finite
     */
    void normOverRanks(Tensor norm, Tensor skip);
}
