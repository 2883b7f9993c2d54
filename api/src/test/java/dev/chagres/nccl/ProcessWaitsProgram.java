package dev.chagres.nccl;

import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Ranks;
import java.time.Duration;

/**
 * What a rank's process runs in {@link ProcessWaitsTest}. Rank 0 counts a receive from rank 1 as given to NCCL, and is then in no wait that
 * others see, as while it launches a kernel into a full queue. It writes what happened.
 */
final class ProcessWaitsProgram {
    static final Duration TIMEOUT = Duration.ofMillis(1_500);

    private ProcessWaitsProgram() {}

    public static void main(String[] arguments) {
        boolean sends = arguments[0].equals("sends");
        try {
            Ranks.fromEnvironment()
                    .withConfig(CommunicatorConfig.standard().withTimeout(TIMEOUT))
                    .each(rank -> {
                        Communicator world = rank.communicator();
                        if (rank.index() == 0) {
                            launches(world);
                            System.out.println("nobody is behind");
                        } else {
                            if (sends) {
                                give(world, Operation.SEND, 0);
                            }
                            Thread.sleep(TIMEOUT.multipliedBy(4));
                        }
                        ended(rank);
                    });
        } catch (RankFailedException failed) {
            System.out.println(failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }

    private static void give(Communicator world, Operation operation, int peer) {
        RankCalls calls = world.endpoint().calls();
        calls.counts().count(operation, peer);
        calls.publish();
        calls.meet();
        calls.leave();
    }

    private static void launches(Communicator world) throws InterruptedException {
        give(world, Operation.RECEIVE, 1);
        long end = System.nanoTime() + TIMEOUT.multipliedBy(3).toNanos();
        while (System.nanoTime() < end) {
            world.check();
            Thread.sleep(1);
        }
    }

    private static void ended(Rank rank) {
        System.out.println("rank " + rank.index() + " has ended");
    }
}
