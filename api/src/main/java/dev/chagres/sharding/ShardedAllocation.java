package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.internal.Checks;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.nccl.Communicator;
import org.jspecify.annotations.Nullable;

/**
 * Memory for the part of a model that a rank keeps.
 *
 * <p>Threading: the device's thread.
 */
record ShardedAllocation(ModelPlan plan, DType dtype, long seed, FullyShardedConfig config) {
    FullySharded on(ShardedRanks ranks, @Nullable Mesh mesh) {
        Communicator all = ranks.all();
        Checks.given("plan", plan).padGroups(all.ranks());
        Parameters parameters = Parameters.allocate(all.device(), plan, dtype, seed, ranks.shard(config.stage()));
        FullySharded made = null;
        try {
            made = new FullySharded(config, parameters, ranks, mesh, 0);
            SameParameters.ensure(parameters, all, seed, "stage", config.stage().ordinal() + 1L);
            SameParameters.ensure(parameters, all, seed, "optimizer", config.optimizer());
            SameParameters.ensure(parameters, all, seed, "reduceType", config.reduceType());
            made.begin();
            return made;
        } catch (RuntimeException | Error failure) {
            if (made != null) {
                made.free();
            }
            parameters.close();
            throw failure;
        }
    }
}
