package dev.chagres.jmh;

import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Ranks;
import java.util.function.Function;

/** Ranks that each have layers and, whenever they are told to, make as many steps of training. */
final class RankTeam {
    private final int steps;
    private final Rounds rounds;
    private final Thread running;

    /** Starts the ranks, waits until all have layers, and prints rank 0's. */
    RankTeam(int ranks, int steps, Function<Rank, ? extends LayerStack> open) {
        this.steps = steps;
        rounds = new Rounds(ranks + 1);
        running = Thread.ofPlatform().daemon().name("ranks").start(() -> run(ranks, open));
        rounds.meet();
    }

    private void run(int ranks, Function<Rank, ? extends LayerStack> open) {
        try {
            Ranks.local(ranks).each(rank -> train(rank, open));
        } catch (RuntimeException | Error failed) {
            rounds.fail(failed);
        }
    }

    private void train(Rank rank, Function<Rank, ? extends LayerStack> open) {
        try (LayerStack layers = open.apply(rank)) {
            if (rank.index() == 0) {
                System.out.println(layers);
            }
            rounds.follow(() -> work(layers));
        } catch (RuntimeException | Error failed) {
            rounds.fail(failed); // Here, for Ranks says so when all have returned.
            throw failed;
        }
    }

    private void work(LayerStack layers) {
        for (int i = 0; i < steps; i++) {
            layers.run();
        }
        layers.await();
    }

    /** All ranks make the steps; returns when all devices are done with them. */
    void step() {
        rounds.meet();
        rounds.meet();
    }

    /** Ends the ranks. */
    void end() throws InterruptedException {
        rounds.end();
        running.join();
    }
}
