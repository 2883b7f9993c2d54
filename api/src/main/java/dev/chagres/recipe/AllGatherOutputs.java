package dev.chagres.recipe;

import dev.chagres.Tensor;
import dev.chagres.parameter.QuantizerSite;

/**
 * For sharding: returns weights in eight bits whose parts {@link WeightShards} has cast and ranks have gathered.
 *
 * <p>Threading: the device's thread.
 */
public interface AllGatherOutputs {
    /**
     * Returns the weight in eight bits, [rows, columns], for work that is enqueued next on the parameters' stream.
     *
     * @throws IllegalStateException outside of a layer's call
     */
    Tensor gathered(QuantizerSite site);

    /** Calls {@link WeightShards#cast} for a pass that calibrates, which does not read the bytes. */
    void record();
}
