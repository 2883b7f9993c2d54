package dev.chagres.samples.train;

import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.util.Locale;

/** What each of several ranks keeps of the model. */
enum RankStrategy {
    /** All of it. */
    DDP,
    /** All of it, and a part of the optimizer's state. */
    ZERO1,
    /** All weights, and parts of the optimizer's state and gradients. */
    ZERO2,
    /** Parts of everything. */
    ZERO3;

    /** Takes memory for what {@code rank} keeps of the parameters of {@code declared}. */
    Strategy share(ModelPlan declared, TrainingPlan plan, Rank rank) {
        return switch (this) {
            case DDP ->
                DataParallel.of(
                        Parameters.allocate(
                                rank.device(), declared, plan.recipe().dtype(), plan.seed()),
                        rank.communicator());
            case ZERO1 -> share(declared, plan, rank, ZeroStage.ONE);
            case ZERO2 -> share(declared, plan, rank, ZeroStage.TWO);
            case ZERO3 -> share(declared, plan, rank, ZeroStage.THREE);
        };
    }

    private static Strategy share(ModelPlan declared, TrainingPlan plan, Rank rank, ZeroStage stage) {
        return FullySharded.allocate(declared, plan.recipe().dtype(), plan.seed(), stage, rank.communicator());
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
