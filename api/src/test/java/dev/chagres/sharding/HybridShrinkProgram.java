package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.sharding.HybridShrinkTraining.Moment;
import dev.chagres.sharding.HybridShrinkTraining.Trained;
import dev.chagres.sharding.HybridShrinkTraining.Victim;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;

/** What a rank's process runs in {@link HybridShrinkTest}: two copies of a model, one of which loses a rank. */
final class HybridShrinkProgram {
    private HybridShrinkProgram() {}

    /** The file of the state from which the other copy goes on, the timeout, the victim's rank, step and moment, and how weights are gathered. */
    public static void main(String[] arguments) {
        Path file = Path.of(arguments[0]);
        Duration timeout = Duration.ofMillis(Long.parseLong(arguments[1]));
        FullyShardedConfig config =
                FullyShardedConfig.of(ZeroStage.THREE).withWeightGather(WeightGather.valueOf(arguments[5]));
        Victim victim = new Victim(
                Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]), Moment.valueOf(arguments[4]));
        try {
            System.out.println(Ranks.fromEnvironment()
                    .withConfig(CommunicatorConfig.standard().withTimeout(timeout))
                    .run(rank -> text(train(rank, config, file, victim)))
                    .getFirst());
        } catch (RankFailedException failed) {
            System.out.println("ranks " + failed.ranks() + " " + failed.getMessage());
            System.exit(3);
        }
    }

    private static Trained train(Rank rank, FullyShardedConfig config, Path file, Victim victim) throws Exception {
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.REPLICATE, 2).with(MeshDimension.SHARD, 2);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                HybridShrinkTraining training = new HybridShrinkTraining(
                        rank, config, mesh, DType.FLOAT32, 1e6f, List.of(victim), _ -> ShrinkProgram.signal("-KILL"))) {
            return training.train(mesh, file);
        }
    }

    static String text(Trained trained) {
        return trained.begun() + " "
                + Arrays.toString(Arrays.copyOfRange(trained.losses(), trained.begun(), HybridShrinkTraining.STEPS));
    }
}
