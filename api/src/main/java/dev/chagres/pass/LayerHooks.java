package dev.chagres.pass;

import dev.chagres.pass.PassObserver.Direction;

/**
 * For sharding: is notified where calls of layers and embeddings, which may use parameters, begin and end in a pass. Calls nest.
 *
 * <p>Threading: the device's thread.
 */
public interface LayerHooks {
    /** A call begins: nothing of it is enqueued, and nothing saved. */
    void begins(Direction direction, Pass pass);

    /**
     * The innermost call under way, a backward call, has enqueued all gradients of parameters that it and calls inside it write. The gradient
     * of its input may follow. Not every call says so.
     */
    void gradientsWritten(Pass pass);

    /** A call has enqueued all its work; the layer may still save tensors for its own checks. */
    void ends(Direction direction, Pass pass);

    /** A call that has begun has thrown an exception: {@link #ends} is not called for it. */
    void fails();
}
