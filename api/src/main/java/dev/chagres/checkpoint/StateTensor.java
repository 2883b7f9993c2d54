package dev.chagres.checkpoint;

import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.TensorSpec;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.State;
import java.util.List;

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

    /**
     * Bytes of the whole tensor that lie one after another on a rank.
     *
     * @param first of them in the whole tensor
     * @param vector has them, and others
     * @param place of the first one there
     * @param bytes how many, at least one
     */
    record Stretch(long first, Tensor vector, long place, long bytes) {}

    /** Returns what this rank, {@code rank}, holds. */
    List<Stretch> held(int rank);

    /** Returns what this rank, {@code rank}, writes of that: ranks that hold the same have equal parts of it. */
    List<Stretch> written(int rank);

    /** Enqueues the collection of {@code elements}, from {@code first} on, on the root; elsewhere they are only room for it. */
    void gather(long first, Tensor elements, Communicator all, Stream stream, Scope views);

    /** Enqueues the distribution of the root's {@code elements}, from {@code first} on, to the ranks that hold them. */
    void scatter(long first, Tensor elements, Communicator all, Stream stream, Scope views);
}
