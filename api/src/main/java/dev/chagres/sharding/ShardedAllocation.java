package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ranks.SameParameters;
import dev.chagres.mesh.Mesh;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.Parameters;
import org.jspecify.annotations.Nullable;

/**
 * Allocates a rank's shard of a model.
 *
 * <p>Threading: the device's thread.
 */
record ShardedAllocation(ModelPlan plan, DType dtype, long seed, FullyShardedConfig config) {
    FullySharded on(ShardedRanks ranks, @Nullable Mesh mesh) {
        Communicator all = ranks.all();
        Checks.given("plan", plan).padGroups(all.ranks());
        SameParameters.ensureSame(all, "weightGather", config.weightGather());
        SameParameters.ensureSame(all, "gradientReduction", config.gradientReduction());
        GatherRanks gathers = GatherRanks.of(ranks, config.weightGather());
        Parameters parameters = null;
        FullySharded made = null;
        try {
            parameters = allocate(ranks, gathers);
            made = new FullySharded(config, parameters, ranks, gathers, mesh, 0);
            SameParameters.ensure(parameters, all, seed, "stage", config.stage().ordinal() + 1L);
            SameParameters.ensure(parameters, all, seed, "optimizer", config.optimizer());
            SameParameters.ensure(parameters, all, seed, "reduceType", config.reduceType());
            SameParameters.ensure(parameters, all, seed, "reshard", config.reshard());
            SameParameters.ensure(parameters, all, seed, "gradientSync", config.gradientSync());
            made.begin();
            return made;
        } catch (RuntimeException | Error failure) {
            if (made != null) {
                made.free();
            }
            if (parameters != null) {
                parameters.close();
            }
            gathers.close();
            throw failure;
        }
    }

    private Parameters allocate(ShardedRanks ranks, GatherRanks gathers) {
        Device device = ranks.all().device();
        ParameterShard shard = ranks.shard(config.stage());
        return gathers.usesWindows()
                ? Parameters.allocate(device, plan, dtype, seed, shard, gathers::takeForWeights)
                : Parameters.allocate(device, plan, dtype, seed, shard);
    }
}
