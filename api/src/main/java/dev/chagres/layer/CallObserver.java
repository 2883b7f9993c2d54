package dev.chagres.layer;

import dev.chagres.layer.PassObserver.Direction;

/**
 * For sharding: is told where the calls of a pass begin and end that may use parameters, of layers and of embeddings. Calls nest.
 *
 * <p>Threading: the device's thread.
 */
public interface CallObserver {
    /** A call begins: nothing of it is enqueued, and nothing saved. */
    void begins(Direction direction, Pass pass);

    /** A call has enqueued all its work; what a layer keeps for its own checks may still be saved. */
    void ends(Direction direction, Pass pass);

    /** A call that has begun has thrown an exception: {@link #ends} does not come. */
    void fails();
}
