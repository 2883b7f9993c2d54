package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.TrainedModel;
import dev.chagres.launch.Rank;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pipeline.PipelineParallel;
import dev.chagres.pipeline.PipelinePlan;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.DataParallelConfig;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.Strategy;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * What one of several ranks has of a model, and what joins it with the others.
 *
 * <p>Threading: the device's thread.
 *
 * @param model the whole model, of which this rank's part has memory
 * @param plan where all parameters of the model are declared
 * @param strategy sums gradients over the ranks that have the same layers, heads and columns
 * @param pipeline null where each rank has all layers
 */
record RankModel(
        TrainedModel model,
        ModelPlan plan,
        Strategy strategy,
        Mesh mesh,
        @Nullable PipelineGradients pipeline) {
    /**
     * Takes memory for what {@code rank} keeps.
     *
     * @throws IllegalArgumentException when ranks are to have some layers each of a model that is no {@link LayeredModel}
     */
    static RankModel of(Rank rank, ModelSetup setup) {
        Mesh mesh = Mesh.of(rank.communicator(), setup.layout().mesh());
        Device device = rank.device();
        ModelPlan whole = setup.layout().begin(mesh);
        AtomicReference<Strategy> made = new AtomicReference<>();
        if (setup.layout().pipelineRanks() == 1) {
            TrainedModel model =
                    setup.factory().make(device, whole, declared -> share(declared, setup, mesh, device, made));
            return new RankModel(model, whole, made.get(), mesh, null);
        }
        AtomicReference<PipelinePlan> placed = new AtomicReference<>();
        AtomicReference<LayeredModel.Parts> parts = new AtomicReference<>();
        TrainedModel model = setup.factory().make(device, whole, declared -> {
            parts.set(setup.factory().parts(declared).orElseThrow(RankModel::indivisible));
            placed.set(PipelineGradients.place(
                    declared,
                    parts.get(),
                    setup.layout().pipelineRanks(),
                    setup.layout().stagesPerRank()));
            ModelPlan part = placed.get().part(mesh.coordinate(MeshDimension.PIPELINE));
            return share(part, setup, mesh, device, made);
        });
        if (!(model instanceof LayeredModel layered)) {
            throw indivisible();
        }
        PipelineParallel pipeline = PipelineParallel.of(
                placed.get(), model.parameters(), parts.get().columns(), mesh);
        var gradients = new PipelineGradients(
                device, pipeline, layered, placed.get(), setup.shape().microBatches());
        return new RankModel(model, whole, made.get(), mesh, gradients);
    }

    private static IllegalArgumentException indivisible() {
        return new IllegalArgumentException(
                "model: expected a LayeredModel whose factory tells its parts, which the ranks of a pipeline need");
    }

    private static Parameters share(
            ModelPlan declared, ModelSetup setup, Mesh mesh, Device device, AtomicReference<Strategy> made) {
        FullyShardedConfig zero = setup.layout().zero();
        setup.layOut(declared);
        Strategy strategy = zero == null
                ? DataParallel.of(
                        Parameters.allocate(device, declared, setup.precision().dtype(), setup.seed()),
                        mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT),
                        DataParallelConfig.standard()
                                .withReduceType(setup.layout().reduceType()))
                : shared(
                        FullySharded.allocate(declared, setup.precision().dtype(), setup.seed(), zero, mesh),
                        zero,
                        mesh);
        made.set(strategy);
        return strategy.parameters();
    }

    private static Strategy shared(FullySharded strategy, FullyShardedConfig asked, Mesh mesh) {
        String why = strategy.whyNoWindows();
        if (why != null && mesh.world().rank() == 0) {
            if (strategy.weightGather() != asked.weightGather()) {
                warnOfNoWindows("weight gather", why, "weights are gathered as with device");
            }
            if (strategy.gradientReduction() != asked.gradientReduction()) {
                warnOfNoWindows("gradient reduction", why, "gradients are reduced as with reduce-scatter");
            }
        }
        return strategy;
    }

    private static void warnOfNoWindows(String what, String why, String instead) {
        System.err.println(what + ": NCCL made no windows, for " + why + "; " + instead);
    }
}
