package dev.chagres.spark;

import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.Trainer;
import java.util.Locale;

/**
 * What each rank keeps of the model.
 *
 * <p>Threading: immutable.
 */
public enum ParallelStrategy {
    /** All of it. */
    DDP,
    /** All of it, and a part of the optimizer's state. */
    ZERO1,
    /** All weights, and parts of the optimizer's state and gradients. */
    ZERO2,
    /** Parts of everything. */
    ZERO3;

    /** Returns {@code trainer} on so many ranks. */
    Trainer on(Trainer trainer, int ranks) {
        return switch (this) {
            case DDP -> trainer.withRanks(ranks);
            case ZERO1 -> sharded(trainer, ranks, ZeroStage.ONE);
            case ZERO2 -> sharded(trainer, ranks, ZeroStage.TWO);
            case ZERO3 -> sharded(trainer, ranks, ZeroStage.THREE);
        };
    }

    private static Trainer sharded(Trainer trainer, int ranks, ZeroStage stage) {
        return trainer.withMesh(MeshShape.ofOne().with(MeshDimension.SHARD, ranks))
                .withSharding(FullyShardedConfig.of(stage));
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
