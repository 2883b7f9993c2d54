package dev.chagres.recipe;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scope;
import dev.chagres.Stream;

/**
 * A weight in eight bits, as products read it.
 *
 * <p>Threading: the device's thread.
 */
sealed interface WeightCopies permits CachedWeight, HeldWeight {
    /** Returns the matrix, ready behind what was enqueued on {@code stream}. */
    QuantizedTensor rowwise(Recording recording, Scope temporary, Stream stream);

    /** Returns the same with the transpose. */
    QuantizedTensor both(Recording recording, Scope temporary, Stream stream);

    /** Casts anew at the next call, where there is something to cast. */
    void forget();

    /** Returns whether there is something that is cast, and so can be compared with the copies. */
    boolean hasSource();
}
