package dev.chagres.batch;

import org.jspecify.annotations.Nullable;

/**
 * Where a training loop takes its batches from, one after the other. {@link BatchSource} reads them ahead on a thread of its own.
 *
 * <p>Threading: {@link #stop} may be called by any thread, the others by the loop's.
 */
public interface Batches {
    /**
     * Returns the next batch, waiting until it is there; null when there is none, or {@link #stop} was called.
     *
     * @throws InterruptedException when the calling thread is interrupted while waiting
     * @throws RuntimeException when reading fails
     */
    @Nullable
    Batch take() throws InterruptedException;

    /** Takes back a batch, whose contents may change from now on. */
    void recycle(Batch batch);

    /** Ends the batches: {@link #take} returns null from now on, also to a thread that waits in it. */
    void stop();
}
