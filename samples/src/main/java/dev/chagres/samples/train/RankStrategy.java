package dev.chagres.samples.train;

import dev.chagres.DType;
import dev.chagres.model.ContextParallel;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.model.TensorParallel;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.Mesh;
import dev.chagres.sharding.MeshDimension;
import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.util.Locale;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** What each of several ranks keeps of the model. */
enum RankStrategy {
    /** All of it. */
    DDP,
    /** All of it, and a part of the optimizer's state. */
    ZERO1,
    /** All weights, and parts of the optimizer's state and gradients. */
    ZERO2,
    /** Parts of everything. */
    ZERO3,
    /** Parts of everything of one of several copies. */
    HSDP,
    /** A part of each layer's matrices, of one of one or more copies. */
    TP,
    /** Some of the layers, of one of one or more copies. */
    PP,
    /** All of the model, and a part of the tokens of each micro-batch, of one or more copies. */
    CP;

    /** Takes memory for what {@code rank} keeps of the parameters of {@code declared}; {@code mesh} is there where this needs one. */
    Strategy share(ModelPlan declared, TrainingPlan plan, Rank rank, @Nullable Mesh mesh) {
        DType dtype = plan.recipe().dtype();
        long seed = plan.seed();
        return switch (this) {
            case DDP, CP ->
                DataParallel.of(Parameters.allocate(rank.device(), declared, dtype, seed), rank.communicator());
            case ZERO1 -> FullySharded.allocate(declared, dtype, seed, ZeroStage.ONE, rank.communicator());
            case ZERO2 -> FullySharded.allocate(declared, dtype, seed, ZeroStage.TWO, rank.communicator());
            case ZERO3 -> FullySharded.allocate(declared, dtype, seed, ZeroStage.THREE, rank.communicator());
            case HSDP -> {
                FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE)
                        .withOptimizer(plan.layout().optimizer());
                yield FullySharded.allocate(declared, dtype, seed, config, Objects.requireNonNull(mesh));
            }
            case PP -> throw new IllegalStateException("a pipeline's ranks have stages: RankModel makes them");
            case TP ->
                DataParallel.of(
                        Parameters.allocate(rank.device(), declared, dtype, seed),
                        Objects.requireNonNull(mesh).along(MeshDimension.REPLICATE));
        };
    }

    /** Returns the mesh that this needs; null where it needs none. */
    @Nullable
    Mesh mesh(TrainingPlan plan, Rank rank) {
        return this == HSDP || sharesMicroBatches()
                ? Mesh.of(rank.communicator(), plan.layout().mesh())
                : null;
    }

    /** Returns whether several ranks compute the same micro-batches together. */
    boolean sharesMicroBatches() {
        return this == TP || this == PP || this == CP;
    }

    /** Returns an empty plan, of which {@code mesh} says among which ranks its layers are split, or tokens shared out. */
    static ModelPlan begin(RankLayout layout, @Nullable Mesh mesh) {
        if (mesh == null) {
            return new ModelPlan();
        }
        if (layout.contextRanks() > 1) {
            return new ModelPlan(ContextParallel.of(mesh.along(MeshDimension.CONTEXT)));
        }
        TensorParallel ranks = TensorParallel.of(mesh.along(MeshDimension.TENSOR));
        return new ModelPlan(layout.sequenceParallel() ? ranks.withSequenceParallel() : ranks);
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
