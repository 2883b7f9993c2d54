package dev.chagres.jmh;

import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import org.jspecify.annotations.Nullable;

/**
 * Rounds of work that threads begin and end together. One of them drives: each round is {@link #meet}, its part, and {@link #meet}. The
 * others {@link #follow}.
 *
 * <p>Threading: thread-safe.
 */
final class Rounds {
    private final CyclicBarrier all;
    private volatile boolean ended;
    private volatile @Nullable Throwable failure;

    /** Of so many threads, the one that drives among them. */
    Rounds(int threads) {
        all = new CyclicBarrier(threads);
    }

    /** Waits for all threads. */
    void meet() {
        try {
            all.await();
        } catch (BrokenBarrierException | InterruptedException broken) {
            throw new IllegalStateException(
                    "expected ranks that do as they are told, got a failure", failure == null ? broken : failure);
        }
    }

    /** Meets the other threads, which are ready then, and does {@code work} in each round, until the thread that drives ends them. */
    void follow(Runnable work) {
        meet();
        while (true) {
            meet();
            if (ended) {
                return;
            }
            work.run();
            meet();
        }
    }

    /** Says that a thread has failed: the others do not wait for it. */
    void fail(Throwable thrown) {
        failure = thrown;
        all.reset();
    }

    /** Lets those that follow return. */
    void end() {
        ended = true;
        meet();
    }
}
