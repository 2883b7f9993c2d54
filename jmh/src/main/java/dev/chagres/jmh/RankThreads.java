package dev.chagres.jmh;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Ranks of which the thread that makes them is rank 0, and the others are threads that do as it does: a benchmark times what rank 0 does.
 *
 * @param <R> what a rank has
 */
final class RankThreads<R extends CollectiveRank> implements AutoCloseable {
    private final CyclicBarrier all;
    private final List<Thread> others = new ArrayList<>();
    private final R own;
    /** What the others do when they are let go; null ends them. */
    private volatile @Nullable Consumer<R> step;

    private volatile @Nullable Throwable failure;

    /** Opens each rank on its thread. */
    RankThreads(int ranks, IntFunction<R> open) {
        all = new CyclicBarrier(ranks);
        for (int rank = 1; rank < ranks; rank++) {
            int index = rank;
            others.add(Thread.ofPlatform().daemon().name("rank " + rank).start(() -> run(index, open)));
        }
        own = open.apply(0);
        meet();
    }

    private void run(int rank, IntFunction<R> open) {
        try (R opened = open.apply(rank)) {
            all.await();
            while (true) {
                all.await();
                Consumer<R> next = step;
                if (next == null) {
                    return;
                }
                next.accept(opened);
                opened.await();
                all.await();
            }
        } catch (RuntimeException | Error | InterruptedException | BrokenBarrierException failed) {
            failure = failed;
            all.reset();
        }
    }

    private void meet() {
        try {
            all.await();
        } catch (BrokenBarrierException | InterruptedException broken) {
            throw new IllegalStateException(
                    "expected ranks that do as rank 0 does, got a failure", failure == null ? broken : failure);
        }
    }

    /** Returns rank 0. */
    R own() {
        return own;
    }

    /** Lets the other ranks begin; the caller then does the same. */
    void begin(Consumer<R> next) {
        step = next;
        meet();
    }

    /** Waits until all devices are done with what {@link #begin} has begun. */
    void end() {
        own.await();
        meet();
    }

    /** All ranks do it once. */
    void once(Consumer<R> next) {
        begin(next);
        next.accept(own);
        end();
    }

    @Override
    public void close() throws InterruptedException {
        step = null;
        meet();
        own.close();
        for (Thread other : others) {
            other.join();
        }
    }
}
