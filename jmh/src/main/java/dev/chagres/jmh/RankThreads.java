package dev.chagres.jmh;

import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * Ranks as threads: the thread that makes them is rank 0, which the benchmark times, and the others do the same as it.
 *
 * @param <R> what a rank has
 */
final class RankThreads<R extends CollectiveRank> implements AutoCloseable {
    private final Rounds rounds;
    private final List<Thread> others = new ArrayList<>();
    private final R own;
    /** What the other ranks do in each round. */
    private volatile @Nullable Consumer<R> step;

    /** Opens each rank on its thread. */
    RankThreads(int ranks, IntFunction<R> open) {
        rounds = new Rounds(ranks);
        for (int rank = 1; rank < ranks; rank++) {
            int index = rank;
            others.add(Thread.ofPlatform().daemon().name("rank " + rank).start(() -> run(index, open)));
        }
        own = open.apply(0);
        rounds.meet();
    }

    private void run(int rank, IntFunction<R> open) {
        try (R opened = open.apply(rank)) {
            rounds.follow(() -> work(opened));
        } catch (RuntimeException | Error failed) {
            rounds.fail(failed);
        }
    }

    private void work(R rank) {
        try {
            Objects.requireNonNull(step).accept(rank);
            rank.await();
        } catch (RuntimeException | Error failed) {
            rank.fail(failed);
            throw failed;
        }
    }

    /** Returns rank 0. */
    R own() {
        return own;
    }

    /** Lets the other ranks begin; the caller must then do the same work. */
    void begin(Consumer<R> next) {
        step = next;
        rounds.meet();
    }

    /**
     * Waits until all devices are done with the work that {@link #begin} started.
     *
     * @throws IllegalStateException when another rank has failed
     */
    void end() {
        own.await();
        rounds.meet();
    }

    /** Does the work once on all ranks. */
    void once(Consumer<R> next) {
        begin(next);
        next.accept(own);
        end();
    }

    @Override
    public void close() throws InterruptedException {
        rounds.end();
        own.close();
        for (Thread other : others) {
            other.join();
        }
    }
}
