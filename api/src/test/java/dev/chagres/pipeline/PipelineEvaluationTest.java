package dev.chagres.pipeline;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineModel.Place;
import dev.chagres.pipeline.PipelineModel.Variant;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.SmallModel;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Evaluation through a pipeline gives the losses of one rank, and training goes on as if there had been none. */
@Tag("L0")
@Tag("L2")
class PipelineEvaluationTest {
    private static final int STEPS = 5;
    private static final long SEED = 7;
    /** Batches of an evaluation are those of this step, which no training has. */
    private static final int APART = 1_000;

    private static final AdamW.Config ADAM = AdamW.Config.standard();

    private enum Products {
        PLAIN,
        DELAYED_SCALING
    }

    /** Whether a run of training has evaluations between. */
    private enum Evaluations {
        BETWEEN,
        NONE
    }

    /**
     * A model, its division, and the micro-batches of its steps and evaluations.
     *
     * @param shared among how many copies of each stage weights are sharded; 1 for a single one
     */
    private record Division(
            int ranks,
            int stagesPerRank,
            int shared,
            int layers,
            int trained,
            int evaluated,
            Variant variant,
            Products products) {
        private DType dtype() {
            return products == Products.PLAIN ? DType.FLOAT32 : DType.BFLOAT16;
        }

        /** Products in eight bits want a multiple of 16 tokens. */
        private int multiple() {
            return products == Products.PLAIN ? 1 : 16;
        }

        PipelineModel ofOne(Device device) {
            Place all = new Place(
                    1,
                    1,
                    0,
                    1,
                    0,
                    multiple(),
                    new ModelPlan(),
                    plan -> Parameters.allocate(device, plan, dtype(), SEED));
            return new PipelineModel(device, layers, SmallModel.LAYER, all, variant);
        }

        PipelineModel ofRank(Device device, Mesh mesh, AtomicReference<Strategy> made) {
            Place place = new Place(
                    ranks,
                    stagesPerRank,
                    mesh.coordinate(MeshDimension.PIPELINE),
                    shared,
                    mesh.coordinate(MeshDimension.SHARD),
                    multiple(),
                    new ModelPlan(),
                    part -> {
                        made.set(strategy(device, part, mesh));
                        return made.get().parameters();
                    });
            return new PipelineModel(device, layers, SmallModel.LAYER, place, variant);
        }

        private Strategy strategy(Device device, ModelPlan part, Mesh mesh) {
            return shared == 1
                    ? DataParallel.of(
                            Parameters.allocate(device, part, dtype(), SEED), mesh.along(MeshDimension.REPLICATE))
                    : FullySharded.allocate(part, dtype(), SEED, FullyShardedConfig.of(ZeroStage.THREE), mesh);
        }

        @Nullable
        Quantizers quantizers(PipelineModel model) {
            return products == Products.PLAIN ? null : Quantizers.allocate(model.parameters, DelayedScaling.standard());
        }
    }

    private static State stateOf(@Nullable Quantizers quantizers) {
        return quantizers == null ? State.of() : quantizers.state();
    }

    /** What training has given, and the losses of the micro-batches of evaluations before and after it. */
    private record Run(float[][] losses, float[] norms, float[] before, float[] after) {
        Run(float[] before, float[] after) {
            this(new float[STEPS][], new float[STEPS], before, after);
        }
    }

    /** One rank's losses with the weights that a model begins with, and with those of a file. */
    private static Run ofOne(Division division, Path file) {
        try (Device device = Device.open();
                PipelineModel model = division.ofOne(device);
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Quantizers quantizers = division.quantizers(model);
                Pass pass = Pass.evaluation(device)) {
            if (quantizers != null) {
                pass.autocast(quantizers);
            }
            float[] before = evaluate(division, model, pass);
            Safetensors.load(
                    file, State.of(model.parameters.state(), optimizer.state(), stateOf(quantizers)), device.stream());
            return new Run(before, evaluate(division, model, pass));
        }
    }

    private static float[] evaluate(Division division, PipelineModel model, Pass pass) {
        int microBatches = division.shared * division.evaluated;
        model.begin(5, APART, microBatches);
        for (int i = 0; i < microBatches; i++) {
            model.evaluate(i, pass);
        }
        return model.losses();
    }

    private static float[] evaluate(Division division, PipelineModel model, PipelineParallel pipeline) {
        int microBatches = division.evaluated;
        model.begin(5, APART, microBatches);
        // @start region="evaluate"
        pipeline.evaluate(model, microBatches); // the stage whose steps pipeline.run takes
        // @end
        return model.losses();
    }

    private static Run ofRank(Rank rank, Division division, Evaluations evaluations, Path file) {
        MeshShape shape = MeshShape.ofOne()
                .with(MeshDimension.PIPELINE, division.ranks)
                .with(MeshDimension.SHARD, division.shared);
        boolean between = evaluations == Evaluations.BETWEEN;
        AtomicReference<Strategy> made = new AtomicReference<>();
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                PipelineModel model = division.ofRank(rank.device(), mesh, made);
                Strategy strategy = made.get();
                PipelineParallel pipeline =
                        PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
                AdamW optimizer = new AdamW(model.parameters, ADAM);
                Quantizers quantizers = division.quantizers(model)) {
            GradientNorm norm = new GradientNorm(model.parameters, 1);
            pipeline.passes().forEach(strategy::follow);
            if (between) {
                strategy.follow(pipeline.evaluationPass());
            }
            if (quantizers != null) {
                strategy.reduceAmax(quantizers);
                pipeline.passes().forEach(pass -> pass.autocast(quantizers));
                if (between) {
                    pipeline.evaluationPass().autocast(quantizers);
                }
            }
            float[] before = between ? evaluate(division, model, pipeline) : new float[0];
            Run run = new Run(before, before.clone());
            for (int step = 0; step < STEPS; step++) {
                model.begin(5, step, division.trained);
                pipeline.run(model, division.trained);
                run.losses[step] = model.losses();
                float[] inside = between ? evaluate(division, model, pipeline) : before;
                strategy.sumGradients();
                norm.compute();
                if (step == 0) {
                    assertArrayEquals(before, inside, "a run changes no weight");
                }
                run.norms[step] = norm.norm().toFloats(rank.device().stream())[0];
                optimizer.step(1e-2f, norm);
                if (between) {
                    System.arraycopy(evaluate(division, model, pipeline), 0, run.after, 0, run.after.length);
                }
            }
            RunState.of(strategy)
                    .stages(pipeline)
                    .optimizer(optimizer)
                    .with(stateOf(quantizers))
                    .save(file, Map.of());
            return run;
        }
    }

    @ParameterizedTest
    @CsvSource({
        "1, 1, 1, 3, 2, 3, DROPOUT, PLAIN",
        "2, 1, 1, 2, 4, 1, DROPOUT, PLAIN",
        "3, 1, 1, 4, 2, 5, RECOMPUTED_DROPOUT, PLAIN",
        "4, 1, 1, 4, 3, 4, FROZEN_MIDDLE, PLAIN",
        "4, 1, 1, 5, 6, 3, DROPOUT, PLAIN",
        "2, 2, 1, 5, 4, 3, DROPOUT, PLAIN",
        "3, 2, 1, 6, 2, 7, DROPOUT, PLAIN",
        "2, 3, 1, 6, 3, 2, FROZEN_TABLE, PLAIN",
        "1, 1, 1, 2, 2, 3, DROPOUT, DELAYED_SCALING",
        "2, 1, 1, 2, 3, 2, DROPOUT, DELAYED_SCALING",
        "2, 2, 1, 4, 2, 3, PLAIN, DELAYED_SCALING",
        "2, 1, 2, 2, 3, 2, DROPOUT, PLAIN",
        "2, 2, 2, 4, 2, 3, DROPOUT, DELAYED_SCALING"
    })
    void ranksHaveTheLossesOfOneAndTrainOnAsBefore(
            int ranks,
            int stages,
            int shared,
            int layers,
            int trained,
            int evaluated,
            Variant variant,
            Products products,
            @TempDir Path folder)
            throws IOException {
        DevicesNeeded.assume(ranks * shared);
        Division division = new Division(ranks, stages, shared, layers, trained, evaluated, variant, products);
        Path file = folder.resolve("evaluated");
        List<Run> runs = Ranks.local(ranks * shared).run(rank -> ofRank(rank, division, Evaluations.BETWEEN, file));
        Run one = ofOne(division, file);
        assertTrue(one.before[0] > 0);
        assertNotEquals(one.before[0], one.after[0]);
        for (int copy = 0; copy < shared; copy++) {
            Run last = runs.get((ranks - 1) * shared + copy); // which has the last stage
            for (int i = 0; i < evaluated; i++) {
                assertEquals(one.before[i * shared + copy], last.before[i], "before training, micro-batch " + i);
                assertEquals(one.after[i * shared + copy], last.after[i], "after training, micro-batch " + i);
            }
        }

        Path plain = folder.resolve("plain");
        List<Run> expected = Ranks.local(ranks * shared).run(rank -> ofRank(rank, division, Evaluations.NONE, plain));
        for (int rank = 0; rank < runs.size(); rank++) {
            assertArrayEquals(expected.get(rank).norms, runs.get(rank).norms, "norms");
            for (int step = 0; step < STEPS; step++) {
                assertArrayEquals(expected.get(rank).losses[step], runs.get(rank).losses[step], "step " + step);
            }
        }
        assertArrayEquals(Files.readAllBytes(plain), Files.readAllBytes(file), "weights, moments and scales");
    }
}
