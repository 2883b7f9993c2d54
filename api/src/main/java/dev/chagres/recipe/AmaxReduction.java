package dev.chagres.recipe;

import dev.chagres.Tensor;
import java.util.List;

/**
 * For sharding: takes the largest magnitudes that ranks have recorded together, so that all of them make the same scales.
 *
 * <p>Threading: the device's thread.
 */
public interface AmaxReduction {
    /**
     * Enqueues {@code amaxes[i] = maximum over ranks of amaxes[i]}, element by element.
     *
     * @param amaxes FLOAT32 vectors: those of forward and those of backward, of one step
     */
    void max(List<Tensor> amaxes);
}
