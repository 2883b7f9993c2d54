package dev.chagres.trainer;

import dev.chagres.Device;
import dev.chagres.launch.Rank;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Stages;
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
 * What one of several ranks has of an ESM-2, and what joins it with the others.
 *
 * <p>Threading: the device's thread.
 *
 * @param model the whole model, of which this rank's part has memory
 * @param strategy sums gradients over the ranks that have the same layers, heads and columns
 * @param pipeline null where each rank has all layers
 */
record RankModel(
        Esm2 model, Strategy strategy, Mesh mesh, @Nullable Esm2Pipeline pipeline) {
    /** Takes memory for what {@code rank} keeps. */
    static RankModel of(Rank rank, Esm2Config config, TrainingPlan plan) {
        Mesh mesh = Mesh.of(rank.communicator(), plan.layout().mesh());
        Device device = rank.device();
        ModelPlan empty = plan.layout().begin(mesh);
        AtomicReference<Strategy> made = new AtomicReference<>();
        if (plan.layout().pipelineRanks() == 1) {
            Esm2 model = new Esm2(device, config, empty, declared -> share(declared, plan, mesh, device, made));
            return new RankModel(model, made.get(), mesh, null);
        }
        AtomicReference<PipelinePlan> placed = new AtomicReference<>();
        Esm2 model = new Esm2(device, config, empty, declared -> {
            int ranks = plan.layout().pipelineRanks();
            placed.set(Esm2Stages.place(declared, config, ranks, plan.layout().stagesPerRank()));
            ModelPlan part = placed.get().part(mesh.coordinate(MeshDimension.PIPELINE));
            return share(part, plan, mesh, device, made);
        });
        PipelineParallel pipeline = PipelineParallel.of(placed.get(), model.parameters(), config.hidden(), mesh);
        Esm2Stages stages = new Esm2Stages(model, placed.get());
        int microBatches = plan.shape().microBatches();
        return new RankModel(
                model, made.get(), mesh, new Esm2Pipeline(device, pipeline, made.get(), stages, microBatches));
    }

    private static Parameters share(
            ModelPlan declared, TrainingPlan plan, Mesh mesh, Device device, AtomicReference<Strategy> made) {
        FullyShardedConfig zero = plan.layout().zero();
        Strategy strategy = zero == null
                ? DataParallel.of(
                        Parameters.allocate(device, declared, plan.recipe().dtype(), plan.seed()),
                        mesh.along(MeshDimension.REPLICATE, MeshDimension.CONTEXT),
                        DataParallelConfig.standard()
                                .withReduceType(plan.layout().reduceType()))
                : shared(FullySharded.allocate(declared, plan.recipe().dtype(), plan.seed(), zero, mesh), zero, mesh);
        made.set(strategy);
        return strategy.parameters();
    }

    private static Strategy shared(FullySharded strategy, FullyShardedConfig asked, Mesh mesh) {
        String why = strategy.whyNoWindows();
        if (why != null && mesh.world().rank() == 0) {
            if (strategy.weightGather() != asked.weightGather()) {
                warnOfNoWindows("--weight-gather", why, "weights are gathered as with device");
            }
            if (strategy.gradientReduction() != asked.gradientReduction()) {
                warnOfNoWindows("--gradient-reduction", why, "gradients are reduced as with reduce-scatter");
            }
        }
        return strategy;
    }

    private static void warnOfNoWindows(String option, String why, String instead) {
        System.err.println("train: " + option + ": NCCL made no windows, for " + why + "; " + instead);
    }
}
