package dev.chagres.nccl;

import dev.chagres.launch.Ranks;
import dev.chagres.nccl.GoingOnRank.Place;
import java.time.Duration;

/**
 * What a rank's process runs in {@link GoingOnTest}: training that goes on without a rank that is killed or stopped. The last line is what
 * the ranks that are left have in common, or what {@link Ranks#run} threw.
 */
final class GoingOnProgram {
    private GoingOnProgram() {}

    public static void main(String[] arguments) {
        CommunicatorConfig config = CommunicatorConfig.standard()
                .withTimeout(Duration.ofMillis(Long.parseLong(arguments[0])))
                .withCallMode(CallMode.valueOf(arguments[1]));
        try (StoppedClock clock = new StoppedClock()) {
            System.out.println(Ranks.fromEnvironment()
                    .withConfig(config)
                    .run(rank -> new GoingOnRank(rank, (step, place) -> {
                                if (step == 3 && place == Place.BEFORE) {
                                    clock.pass();
                                    System.out.println("begun");
                                }
                            })
                            .run())
                    .getFirst());
        } catch (RankFailedException failed) {
            System.out.println("ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }
}
