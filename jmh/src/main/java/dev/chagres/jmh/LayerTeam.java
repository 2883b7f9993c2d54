package dev.chagres.jmh;

import dev.chagres.jmh.FullyShardedBenchmark.RankKind;
import java.io.IOException;

/** Ranks that each have layers and, whenever they are told to, make as many steps of training. */
interface LayerTeam {
    /** Starts the ranks, waits until all have layers, and prints rank 0's. */
    static LayerTeam start(RankKind kind, int ranks, int steps, LayerSetup setup) throws IOException {
        return kind == RankKind.THREADS
                ? new ThreadTeam(ranks, steps, setup::open)
                : new ProcessTeam(ranks, steps, setup);
    }

    /** All ranks make the steps; returns when all devices are done with them. */
    void step();

    /** Ends the ranks. */
    void end() throws InterruptedException;
}
