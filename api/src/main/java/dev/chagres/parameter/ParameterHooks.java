package dev.chagres.parameter;

import dev.chagres.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * For sharding: is notified when weights are read and gradients written; see {@link ParameterAccess#observe}.
 *
 * <p>Threading: the device's thread.
 */
public interface ParameterHooks {
    /** The weight is about to be returned to a reader, whose gradient {@code writer} writes. */
    void reading(Parameter parameter, GradientOwner writer);

    /** A backward pass is about to write or add to the gradient. */
    void writing(Parameter parameter);

    /** A norm or an optimizer is about to use the gradients. */
    void stepping();

    /** An optimizer needs the sum of {@code values} over the ranks whose parts of gradients form the whole. */
    void sumOfShards(Tensor values);

    /** Returns the ranks whose parts form the whole; null where each has all. */
    @Nullable
    ShardRanks shardRanks();

    /** An optimizer has written the weights that this rank updates, outside of a step. */
    void rewritten();

    /** Other weights were loaded, to which gradients that were computed or summed before do not belong. */
    void loaded();
}
