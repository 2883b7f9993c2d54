package dev.chagres.checkpoint;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.State;

/**
 * A tensor of the state of a whole model, of which ranks hold parts.
 *
 * <p>Threading: the device's thread.
 */
sealed interface StateTensor permits StateShard, SplitTensor {
    /** Of all ranks, the one that has the file. */
    int ROOT = 0;

    /** Returns name, type and shape of the whole tensor. */
    TensorSpec spec();

    /** Returns the values that its elements may have. */
    State.Values may();

    /** Enqueues the collection of {@code elements}, from {@code first} on, on the root; elsewhere they are only room for it. */
    void gather(long first, Tensor elements, Communicator all, Stream stream, Scope views);

    /** Enqueues the distribution of the root's {@code elements}, from {@code first} on, to the ranks that hold them. */
    void scatter(long first, Tensor elements, Communicator all, Stream stream, Scope views);
}
