package dev.chagres.spark;

import dev.chagres.DType;
import dev.chagres.launch.Rank;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
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

    /** Takes memory for what {@code rank} keeps of the parameters of {@code declared}. */
    Strategy share(ModelPlan declared, DType dtype, long seed, Rank rank) {
        return switch (this) {
            case DDP -> DataParallel.of(Parameters.allocate(rank.device(), declared, dtype, seed), rank.communicator());
            case ZERO1 -> FullySharded.allocate(declared, dtype, seed, ZeroStage.ONE, rank.communicator());
            case ZERO2 -> FullySharded.allocate(declared, dtype, seed, ZeroStage.TWO, rank.communicator());
            case ZERO3 -> FullySharded.allocate(declared, dtype, seed, ZeroStage.THREE, rank.communicator());
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
