package dev.chagres.nccl;

import dev.chagres.launch.Ranks;
import dev.chagres.nccl.FaultyRank.Fault;
import dev.chagres.nccl.FaultyRank.Injection;
import dev.chagres.nccl.FaultyRank.Work;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/**
 * What a rank's process runs in {@link ProcessFaultsTest}: work without an end. The last line is the time at which it ended, by the
 * host's clock, and what {@link Ranks#run} threw.
 */
final class FaultyProgram {
    private static final int NEVER = -1;

    private FaultyProgram() {}

    public static void main(String[] arguments) {
        Work work = Work.valueOf(arguments[0]);
        long seed = Long.parseLong(arguments[1]);
        Duration timeout = Duration.ofMillis(Long.parseLong(arguments[2]));
        CommunicatorConfig config = CommunicatorConfig.standard()
                .withTimeout(timeout)
                .withName("world")
                .withCallMode(CallMode.valueOf(arguments[3]));
        long[] ended = new long[1];
        try (StoppedClock clock = new StoppedClock()) {
            Ranks.fromEnvironment().withConfig(config).each(rank -> {
                Injection injection = new Injection(
                        rank.count(), NEVER, NEVER, Fault.IS_SILENT, work, CollectiveChecks.ARGUMENTS, seed);
                try {
                    new FaultyRank(rank, injection, new CountDownLatch(1), () -> {})
                            .onTurn(3, () -> {
                                clock.pass();
                                System.out.println("begun");
                            })
                            .run();
                } finally {
                    ended[0] = System.nanoTime();
                }
            });
        } catch (RankFailedException failed) {
            System.out.println(ended[0] + " ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }
}
