package dev.chagres.recipe;

import dev.chagres.Tensor;
import java.util.List;

/**
 * For sharding: reduces the amaxes that ranks have recorded, so that all of them compute the same scales.
 *
 * <p>Threading: the device's thread.
 */
public interface AmaxReduction {
    /**
     * Enqueues {@code amaxes[i] = maximum over ranks of amaxes[i]}, element by element.
     *
     * @param amaxes FLOAT32 vectors: the amaxes of forward and those of backward of one step
     */
    void max(List<Tensor> amaxes);
}
