package dev.chagres.internal.memory;

/**
 * What the host does for each step beside enqueuing kernels: it writes numbers that the kernels read, and moves counters on. It is
 * done at once, or, where a stream captures, at each launch of the graph; see {@code Inside.eachStep}.
 *
 * <p>Threading: the device's thread.
 */
public interface StepWork {
    /**
     * Checks that {@link #write} can be called.
     *
     * @throws IllegalStateException when it cannot, such as after a close
     */
    default void check() {}

    /** Enqueues the numbers of the coming step. Counters stay, for the step may still fail. */
    default void write() {}

    /** Moves the counters on: the step is enqueued. */
    default void count() {}
}
