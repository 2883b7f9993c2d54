package dev.chagres.jmh;

import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import java.util.function.Function;

/** Ranks that are threads of this process. */
final class ThreadTeam implements LayerTeam {
    private final int steps;
    private final Rounds rounds;
    private final Thread running;

    /** As {@link LayerTeam#start}. */
    ThreadTeam(int ranks, int steps, Function<Rank, ? extends LayerStack> open) {
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

    @Override
    public void step() {
        rounds.meet();
        rounds.meet();
    }

    @Override
    public void end() throws InterruptedException {
        rounds.end();
        running.join();
    }
}
