package dev.chagres.sharding;

import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.TensorParallel;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** What ranks shard or split: every strategy that the README's table has, with each value of an option that decides who keeps or sends what. */
enum StrategyKind {
    /** Beside a stage of ZeRO it makes the hybrid of that stage. */
    DDP(null, MeshDimension.REPLICATE),
    ZERO1(FullyShardedConfig.of(ZeroStage.ONE), MeshDimension.SHARD),
    ZERO2(FullyShardedConfig.of(ZeroStage.TWO), MeshDimension.SHARD),
    ZERO3(FullyShardedConfig.of(ZeroStage.THREE), MeshDimension.SHARD),
    HSDP_EACH_COPY(FullyShardedConfig.of(ZeroStage.THREE), MeshDimension.REPLICATE, MeshDimension.SHARD),
    HSDP_ALL_RANKS(
            FullyShardedConfig.of(ZeroStage.THREE).withOptimizer(OptimizerSharding.ALL_RANKS),
            MeshDimension.REPLICATE,
            MeshDimension.SHARD),
    CP_ALL_TO_ALL(null, MeshDimension.CONTEXT),
    CP_ALL_GATHER(null, MeshDimension.CONTEXT),
    CP_RING(null, MeshDimension.CONTEXT),
    CP_BALANCED_RING(null, MeshDimension.CONTEXT),
    TP(null, MeshDimension.TENSOR),
    /** Tensor-parallel ranks that are sequence-parallel, too. */
    SP(null, MeshDimension.TENSOR),
    PP_1F1B(null, MeshDimension.PIPELINE),
    PP_INTERLEAVED(null, MeshDimension.PIPELINE);

    private final @Nullable FullyShardedConfig config;
    private final Set<MeshDimension> dimensions;

    StrategyKind(@Nullable FullyShardedConfig config, MeshDimension... dimensions) {
        this.config = config;
        this.dimensions = EnumSet.copyOf(Arrays.asList(dimensions));
    }

    /** Returns how a model is sharded; null if it is not. */
    @Nullable
    FullyShardedConfig config() {
        return config;
    }

    /** Returns along which dimensions of a mesh the ranks lie. */
    Set<MeshDimension> dimensions() {
        return dimensions;
    }

    boolean isHybrid() {
        return dimensions.size() > 1;
    }

    boolean isPipeline() {
        return dimensions.contains(MeshDimension.PIPELINE);
    }

    /** Returns whether a mesh has one size for both: they are values of one setting, of which a program gives one. */
    boolean excludes(StrategyKind other) {
        return dimensions.stream().anyMatch(other.dimensions::contains);
    }

    /** Returns {@code shape} with so many ranks along the dimensions of this; a hybrid has as few copies as divide them. */
    MeshShape along(MeshShape shape, int ranks) {
        if (!isHybrid()) {
            return shape.with(dimensions.iterator().next(), ranks);
        }
        int copies = 1;
        for (int divisor = ranks; divisor > 1; divisor--) {
            copies = ranks % divisor == 0 ? divisor : copies;
        }
        return shape.with(MeshDimension.REPLICATE, copies).with(MeshDimension.SHARD, ranks / copies);
    }

    ContextParallel context(ContextParallel ranks) {
        return switch (this) {
            case CP_ALL_GATHER -> ranks.withAllGather();
            case CP_RING -> ranks.withRing();
            case CP_BALANCED_RING -> ranks.withBalancedRing();
            default -> ranks;
        };
    }

    TensorParallel tensor(TensorParallel ranks) {
        return this == SP ? ranks.withSequenceParallel() : ranks;
    }
}
