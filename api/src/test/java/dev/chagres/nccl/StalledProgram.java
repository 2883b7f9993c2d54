package dev.chagres.nccl;

import dev.chagres.sharding.Ranks;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/**
 * What a rank's process runs in {@link StalledLaunchTest}: rank 0 says that it has given NCCL a send and stays inside one call that is no
 * wait for the device, as a launch while the stream's queue is full; rank 1 does nothing. The last line is what {@link Ranks#run} threw.
 */
final class StalledProgram {
    private StalledProgram() {}

    public static void main(String[] arguments) {
        Duration timeout = Duration.ofMillis(Long.parseLong(arguments[0]));
        try {
            Ranks.fromEnvironment()
                    .withConfig(
                            CommunicatorConfig.standard().withTimeout(timeout).withName("world"))
                    .each(rank -> {
                        System.out.println("begun");
                        if (rank.index() == 0) {
                            stall(rank.communicator());
                        } else {
                            Thread.sleep(Duration.ofMinutes(2));
                        }
                    });
        } catch (RankFailedException failed) {
            System.out.println("ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }

    private static void stall(Communicator world) throws InterruptedException {
        Endpoint endpoint = world.endpoint();
        endpoint.calls().counts().count(Operation.SEND, 1);
        endpoint.calls().counts().publish();
        CountDownLatch failed = new CountDownLatch(1);
        Thread.ofVirtual().start(() -> {
            while (endpoint.failure() == null) {
                try {
                    Thread.sleep(5);
                } catch (InterruptedException stopped) {
                    return;
                }
            }
            failed.countDown();
        });
        failed.await();
        world.check();
    }
}
