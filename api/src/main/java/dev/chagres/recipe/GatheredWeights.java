package dev.chagres.recipe;

import dev.chagres.Tensor;
import dev.chagres.model.QuantizerSite;

/**
 * For sharding: hands out weights in eight bits whose parts {@link WeightParts} has cast and ranks have gathered.
 *
 * <p>Threading: the device's thread.
 */
public interface GatheredWeights {
    /**
     * Returns the weight in eight bits, [rows, columns] as it is, for what the parameters' stream is given next.
     *
     * @throws IllegalStateException outside of a layer's call
     */
    Tensor gathered(QuantizerSite site);

    /** Calls {@link WeightParts#cast} for a pass that calibrates: nobody reads the bytes. */
    void record();
}
