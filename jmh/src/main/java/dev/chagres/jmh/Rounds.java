package dev.chagres.jmh;

import java.util.concurrent.Phaser;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * Rounds of work that threads begin and end together. One of them drives: each round is {@link #meet}, its part, and {@link #meet}. The
 * others {@link #follow}. When one fails, nobody waits any more: {@link #meet} then throws in all of them.
 *
 * <p>Threading: thread-safe.
 */
final class Rounds {
    /** A failure ends it for good: who comes later does not wait, either. */
    private final Phaser all;

    private final AtomicReference<@Nullable Throwable> failure = new AtomicReference<>();
    private volatile boolean ended;

    /** Of so many threads, the one that drives among them. */
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
     * Meets the other threads, which are ready then, and does {@code work} in each round, until the thread that drives ends them. What
     * {@code work} throws is told to all before this thread closes anything, which may wait for them.
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

    /** Says that a thread has failed. The first failure stays: others follow from it. */
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
