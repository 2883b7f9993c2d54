package dev.chagres.jmh;

import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Ranks;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** Ranks that each have layers and, whenever they are told to, make as many steps of training. */
final class RankTeam {
    private final int steps;
    private final CyclicBarrier all;
    private final Thread running;
    private volatile boolean ended;
    private volatile @Nullable Throwable failure;

    /** Starts the ranks, waits until all have layers, and prints rank 0's. */
    RankTeam(int ranks, int steps, Function<Rank, ? extends LayerStack> open) {
        this.steps = steps;
        all = new CyclicBarrier(ranks + 1);
        running = Thread.ofPlatform().daemon().name("ranks").start(() -> run(ranks, open));
        meet();
    }

    private void run(int ranks, Function<Rank, ? extends LayerStack> open) {
        try {
            Ranks.local(ranks).each(rank -> train(rank, open));
        } catch (RuntimeException | Error failed) {
            failure = failed;
            all.reset();
        }
    }

    private void train(Rank rank, Function<Rank, ? extends LayerStack> open)
            throws InterruptedException, BrokenBarrierException {
        try (LayerStack layers = open.apply(rank)) {
            if (rank.index() == 0) {
                System.out.println(layers);
            }
            all.await();
            while (true) {
                all.await();
                if (ended) {
                    return;
                }
                for (int i = 0; i < steps; i++) {
                    layers.run();
                }
                layers.await();
                all.await();
            }
        }
    }

    private void meet() {
        try {
            all.await();
        } catch (BrokenBarrierException | InterruptedException broken) {
            throw new IllegalStateException(
                    "expected ranks that train, got a failure", failure == null ? broken : failure);
        }
    }

    /** All ranks make the steps; returns when all devices are done with them. */
    void step() {
        meet();
        meet();
    }

    /** Ends the ranks. */
    void end() throws InterruptedException {
        ended = true;
        meet();
        running.join();
    }
}
