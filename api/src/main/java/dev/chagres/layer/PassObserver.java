package dev.chagres.layer;

/**
 * Is told when a pass enters and leaves each layer. Layers nest, so calls do. {@link PassProfile} measures, {@link
 * ProfilerRanges} names ranges for profilers.
 *
 * <p>Threading: the device's thread.
 */
public interface PassObserver {
    /** Which way. */
    enum Direction {
        /** Down: outputs. */
        FORWARD,
        /** Up: gradients. */
        BACKWARD
    }

    /** A layer's call begins: nothing of it is enqueued yet. */
    void entering(Layer layer, Direction direction, Pass pass);

    /**
     * A layer's call has enqueued all its work.
     *
     * @param keptBytes memory that the call has added to what is kept for backward; 0 in backward
     */
    void left(Layer layer, Direction direction, Pass pass, long keptBytes);

    /** A layer's call has thrown an exception: {@link #left} does not come. Does nothing unless an observer says otherwise. */
    default void failed(Layer layer, Direction direction, Pass pass) {}
}
