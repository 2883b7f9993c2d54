package dev.chagres.trainer;

import dev.chagres.mesh.MeshDimension;
import dev.chagres.sharding.ZeroStage;
import java.util.Locale;
import org.jspecify.annotations.Nullable;

/** What ranks split or shard: values of {@code --strategy}. */
enum RankStrategy {
    /** Nothing. */
    DDP(MeshDimension.REPLICATE, null),
    /** The optimizer's state. */
    ZERO1(MeshDimension.SHARD, ZeroStage.ONE),
    /** The optimizer's state and gradients. */
    ZERO2(MeshDimension.SHARD, ZeroStage.TWO),
    /** The optimizer's state, gradients and weights. */
    ZERO3(MeshDimension.SHARD, ZeroStage.THREE),
    /** The same, of each of several copies. */
    HSDP(MeshDimension.SHARD, ZeroStage.THREE),
    /** Each layer's matrices. */
    TP(MeshDimension.TENSOR, null),
    /** The layers. */
    PP(MeshDimension.PIPELINE, null),
    /** The tokens of each micro-batch. */
    CP(MeshDimension.CONTEXT, null);

    private final MeshDimension dimension;
    private final @Nullable ZeroStage stage;

    RankStrategy(MeshDimension dimension, @Nullable ZeroStage stage) {
        this.dimension = dimension;
        this.stage = stage;
    }

    /** Returns along which dimension of a mesh ranks do so. */
    MeshDimension dimension() {
        return dimension;
    }

    /** Returns how far the model is sharded among data-parallel ranks; null if each has a whole copy. */
    @Nullable
    ZeroStage stage() {
        return stage;
    }

    /** Returns the name of a stage. */
    static RankStrategy of(ZeroStage stage) {
        return switch (stage) {
            case ONE -> ZERO1;
            case TWO -> ZERO2;
            case THREE -> ZERO3;
        };
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
