package dev.chagres.jmh;

import java.util.concurrent.Phaser;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * Rounds of work that threads begin and end together. One of them drives: in each round it calls {@link #meet}, does its part, and calls
 * {@link #meet} again. The others {@link #follow}. When one fails, no thread waits any longer: {@link #meet} throws in all of them.
 *
 * <p>Threading: thread-safe.
 */
final class Rounds {
    /** A failure ends it for good: threads that arrive later do not wait, either. */
    private final Phaser all;

    private final AtomicReference<@Nullable Throwable> failure = new AtomicReference<>();
    private volatile boolean ended;

    /** Makes rounds of this many threads, the driving one included. */
    Rounds(int threads) {
        all = new Phaser(threads);
    }

    /**
     * Waits for all threads.
     *
     * @throws IllegalStateException when one of them has failed; its cause is what that one threw
     */
    void meet() {
        if (all.arriveAndAwaitAdvance() < 0) {
            throw new IllegalStateException("expected ranks that do as they are told, got a failure", failure.get());
        }
    }

    /**
     * Waits until all threads are ready, then does {@code work} in each round until the driving thread ends them. What {@code work} throws
     * is reported to all before this thread closes anything, since closing may wait for them.
     */
    void follow(Runnable work) {
        meet();
        while (true) {
            meet();
            if (ended) {
                return;
            }
            try {
                work.run();
            } catch (RuntimeException | Error failed) {
                fail(failed);
                throw failed;
            }
            meet();
        }
    }

    /** Reports that a thread has failed. The first failure is kept: others follow from it. */
    void fail(Throwable thrown) {
        failure.compareAndSet(null, thrown);
        all.forceTermination();
    }

    /** Lets those that follow return. */
    void end() {
        ended = true;
        meet();
    }
}
