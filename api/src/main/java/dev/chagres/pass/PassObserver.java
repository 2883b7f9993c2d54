package dev.chagres.pass;

/**
 * Is notified when a pass enters and leaves each layer. Calls nest as layers do. {@link PassProfile} measures, {@link ProfilerRanges} names
 * ranges for profilers.
 *
 * <p>Threading: the device's thread.
 */
public interface PassObserver {
    /** Direction of a call. */
    enum Direction {
        /** Computes outputs. */
        FORWARD,
        /** Computes gradients. */
        BACKWARD
    }

    /** A layer's call begins: nothing of it is enqueued yet. */
    void entering(Layer layer, Direction direction, Pass pass);

    /**
     * A layer's call has enqueued all its work.
     *
     * @param keptBytes memory that the call has kept for backward; 0 for a backward call
     */
    void left(Layer layer, Direction direction, Pass pass, long keptBytes);

    /** A layer's call has thrown an exception, so {@link #left} is not called for it. Does nothing unless overridden. */
    default void failed(Layer layer, Direction direction, Pass pass) {}
}
