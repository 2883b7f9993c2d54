package dev.chagres.sharding;

import dev.chagres.launch.Ranks;
import dev.chagres.sharding.StrategyRun.Clipping;

/** What a rank's process runs in {@link StrategyBitsTest}: it trains by each strategy, and writes a line for each. */
final class StrategyProgram {
    /** Few: all ranks are one machine's, and a JVM that has just begun is slow. */
    static final int STEPS = 5;

    private StrategyProgram() {}

    public static void main(String[] arguments) {
        Ranks.fromEnvironment().each(rank -> {
            for (StrategyKind kind : StrategyKind.values()) {
                StrategyRun run = StrategyRun.ofRank(rank, StrategyBitsTest.plain(kind), Clipping.NONE, STEPS);
                System.out.println(kind + " " + run.bits(STEPS));
            }
        });
    }
}
