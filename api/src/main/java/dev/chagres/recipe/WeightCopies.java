package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.recipe.Recipe.Product;

/**
 * A weight in eight bits, as products read it.
 *
 * <p>Threading: the device's thread.
 */
sealed interface WeightCopies permits QuantizedWeightCache, Fp8PrimaryWeight {
    /**
     * Returns the weight for {@code product}, ready after the work enqueued on {@code stream}: the matrix and, for the gradient of the
     * input, the transpose.
     */
    QuantizedTensor get(Product product, AmaxRecording recording, Scope temporary, Stream stream);

    /** Casts anew at the next call, if there is something to cast. */
    void forget();

    /** Returns whether there is something that is cast, and so can be compared with the copies. */
    boolean hasSource();
}
