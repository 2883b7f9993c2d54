package dev.chagres.nccl;

import dev.chagres.launch.Ranks;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;

/**
 * What a rank's process runs in {@link ProcessWaitsTest}. Rank 0 counts a receive from rank 1 as given to NCCL, and is then in no wait that
 * others see, as while it launches a kernel into a full queue. It writes what happened.
 */
final class ProcessWaitsProgram {
    /** Longer than a busy machine takes to begin processes. */
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    private ProcessWaitsProgram() {}

    /** Whether rank 1 sends, and a file that rank 0 makes when it has waited for longer than the timeout. */
    public static void main(String[] arguments) {
        boolean sends = arguments[0].equals("sends");
        Path waited = Path.of(arguments[1]);
        try (StoppedClock clock = new StoppedClock()) {
            Ranks.fromEnvironment()
                    .withConfig(CommunicatorConfig.standard().withTimeout(TIMEOUT))
                    .each(rank -> {
                        Communicator world = rank.communicator();
                        if (rank.index() == 1) {
                            if (sends) {
                                give(world, Operation.SEND, 0);
                            }
                            await(waited);
                        } else {
                            give(world, Operation.RECEIVE, 1);
                            clock.pass(TIMEOUT.plusSeconds(15));
                            world.check();
                            Files.createFile(waited);
                        }
                        System.out.println("rank " + rank.index() + " has ended");
                    });
        } catch (RankFailedException failed) {
            System.out.println(failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }

    private static void give(Communicator world, Operation operation, int peer) {
        RankCalls calls = world.endpoint().calls;
        calls.counts.count(operation, peer);
        calls.publish();
        calls.meet();
        calls.leave();
    }

    private static void await(Path file) throws InterruptedException {
        while (!Files.exists(file)) {
            Thread.sleep(5);
        }
    }
}
