package dev.chagres.samples.train;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.samples.esm.Esm2;
import dev.chagres.samples.esm.Esm2Config;
import dev.chagres.samples.esm.Esm2Stages;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.Mesh;
import dev.chagres.sharding.MeshDimension;
import dev.chagres.sharding.PipelineParallel;
import dev.chagres.sharding.PipelinePlan;
import dev.chagres.sharding.Rank;
import dev.chagres.sharding.Strategy;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;

/**
 * What one of several ranks has of an ESM-2, and what joins it with the others.
 *
 * <p>Threading: the device's thread.
 *
 * @param model the whole model, of which this rank's part has memory
 * @param strategy says what is shared out
 * @param mesh null where the strategy needs none
 * @param pipeline null where each rank has all layers
 */
record RankModel(
        Esm2 model,
        Strategy strategy,
        @Nullable Mesh mesh,
        @Nullable Esm2Pipeline pipeline) {
    /** Takes memory for what {@code rank} keeps. */
    static RankModel of(Rank rank, Esm2Config config, TrainingPlan plan) {
        RankStrategy chosen = plan.layout().strategy();
        Mesh mesh = chosen.mesh(plan, rank);
        ModelPlan empty = RankStrategy.begin(plan.layout(), mesh);
        if (chosen == RankStrategy.PP) {
            return inStages(rank.device(), config, plan, empty, Objects.requireNonNull(mesh));
        }
        AtomicReference<Strategy> made = new AtomicReference<>();
        Esm2 model = new Esm2(rank.device(), config, empty, declared -> {
            made.set(chosen.share(declared, plan, rank, mesh));
            return made.get().parameters();
        });
        return new RankModel(model, made.get(), mesh, null);
    }

    private static RankModel inStages(Device device, Esm2Config config, TrainingPlan plan, ModelPlan empty, Mesh mesh) {
        DType dtype = plan.recipe().dtype();
        AtomicReference<PipelinePlan> placed = new AtomicReference<>();
        Esm2 model = new Esm2(device, config, empty, declared -> {
            placed.set(Esm2Stages.place(
                    declared,
                    config,
                    mesh.size(MeshDimension.PIPELINE),
                    plan.layout().stagesPerRank()));
            ModelPlan part = placed.get().part(mesh.coordinate(MeshDimension.PIPELINE));
            return Parameters.allocate(device, part, dtype, plan.seed());
        });
        DataParallel copies = DataParallel.of(model.parameters(), mesh.along(MeshDimension.REPLICATE));
        PipelineParallel pipeline = PipelineParallel.of(placed.get(), model.parameters(), config.hidden(), mesh);
        Esm2Stages stages = new Esm2Stages(model, placed.get());
        int microBatches = plan.shape().microBatches();
        return new RankModel(model, copies, mesh, new Esm2Pipeline(device, pipeline, copies, stages, microBatches));
    }
}
