package dev.chagres.pipeline;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.checkpoint.RunState;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.StoppedClock;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineModel.Variant;
import dev.chagres.sharding.DataParallel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What a pipeline of an encoder with a tied head refuses. */
@Tag("L0")
@Tag("L2")
class PipelineMisuseTest {
    static final int RANKS = 2;

    /** Time passes once a rank waits in vain. */
    private final StoppedClock clock = new StoppedClock();

    @AfterEach
    void goOn() {
        clock.close();
    }

    /** What a rank has. */
    static final class Setting implements AutoCloseable {
        final Mesh mesh;
        final PipelineModel model;
        final PipelineParallel pipeline;

        Setting(Rank rank, int ranks) {
            mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.PIPELINE, ranks));
            model = new PipelineModel(rank.device(), DType.FLOAT32, 2, ranks, 1, rank.index(), Variant.PLAIN);
            pipeline = PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh);
            model.begin(5, 0, 4);
        }

        @Override
        public void close() {
            pipeline.close();
            model.close();
            mesh.close();
        }
    }

    /** Does something at the beginning of forward and backward of micro-batch 1, and computes what {@code model} does. */
    record At(PipelineModel model, Runnable action) implements PipelineStage {
        @Override
        public long tokens(int microBatch) {
            return model.tokens(microBatch);
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            act(microBatch);
            model.forward(stage, microBatch, x, y, pass);
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            act(microBatch);
            model.backward(stage, microBatch, dy, dx, pass);
        }

        private void act(int microBatch) {
            if (microBatch == 1) {
                action.run();
            }
        }
    }

    /** Runs until ranks wait in vain. */
    static Ranks hasty() {
        DevicesNeeded.assume(RANKS);
        return Ranks.local(RANKS)
                .withConfig(CommunicatorConfig.standard()
                        .withTimeout(Duration.ofSeconds(Provider.current() == Provider.REFERENCE ? 2 : 8)));
    }

    static void each(Ranks ranks, Body body) {
        DevicesNeeded.assume(RANKS);
        ranks.each(rank -> {
            try (Setting setting = new Setting(rank, RANKS)) {
                body.run(rank, setting);
            }
        });
    }

    interface Body {
        void run(Rank rank, Setting setting);
    }

    @Test
    void theStateOfOneRanksStagesIsNotSavedAsTheWholeModels() {
        DevicesNeeded.assume(2);
        each(Ranks.local(RANKS), (rank, setting) -> {
            try (DataParallel copies =
                            DataParallel.of(setting.model.parameters, setting.mesh.along(MeshDimension.REPLICATE));
                    AdamW optimizer = new AdamW(setting.model.parameters, AdamW.Config.standard())) {
                assertThrown(
                        IllegalStateException.class,
                        "state: expected parameters of the whole model, got those of rank " + rank.index()
                                + " of a pipeline of 2; call RunState.of(strategy).stages(pipeline)",
                        () -> RunState.of(copies).optimizer(optimizer).specs());
                assertTrue(RunState.of(copies).stages(setting.pipeline).optimizer(optimizer).specs().stream()
                        .anyMatch(spec -> spec.name().startsWith("layers.1.")));
            }
        });
    }

    @Test
    void numbersThatNoPipelineHasAreRefusedBeforeAnythingIsBuilt() {
        DevicesNeeded.assume(2);
        ModelPlan plan = new ModelPlan();
        assertThrown(
                IllegalArgumentException.class,
                "ranks, stagesPerRank: expected at most 4096 stages in all, got 4294967296, 65536 on each of 65536",
                () -> PipelinePlan.of(plan, 65536, 65536));
        assertEquals(4096, PipelinePlan.of(plan, 2, 2048).stages());
        each(
                Ranks.local(RANKS),
                (rank, setting) -> assertThrown(
                        IllegalArgumentException.class,
                        "microBatches: expected at most 262144 through 2 stages, for a step has at most 1048576 forward"
                                + " and backward calls, got 600000000",
                        () -> setting.pipeline.run(setting.model, 600_000_000)));
    }

    @Test
    void aStageNeitherRunsNorClosesItsPipeline() {
        DevicesNeeded.assume(2);
        each(Ranks.local(RANKS), (rank, setting) -> {
            String by =
                    " by a stage of the pipeline of 2 stages, rank " + rank.index() + " of 2, in the middle of a run";
            List<Parameter> all = setting.model.parameters.all();
            setting.pipeline.run(
                    new At(setting.model, () -> {
                        assertThrown(
                                IllegalStateException.class,
                                "run: expected a call outside of a PipelineStage, got one" + by,
                                () -> setting.pipeline.run(setting.model, 4));
                        assertThrown(
                                IllegalStateException.class,
                                "close: expected a call outside of a PipelineStage, got one" + by,
                                setting.pipeline::close);
                    }),
                    4);
            assertTrue(all.stream().allMatch(Parameter::hasGradient), "the run goes on");
        });
    }

    /** Else what the stage was handed would have other contents, without an error. */
    static void assertLent(Pass pass, PipelineParallel pipeline) {
        String got = ": expected a call outside of a PipelineStage, got one by a stage of the " + pipeline
                + ", which begins and ends its passes itself; leave the call out";
        assertThrown(IllegalStateException.class, "begin" + got, pass::begin);
        assertThrown(IllegalStateException.class, "end" + got, pass::end);
        assertThrown(IllegalStateException.class, "close" + got, pass::close);
        assertThrown(IllegalStateException.class, "abandon" + got, pass::abandon);
    }

    @Test
    void aStageNeitherBeginsNorEndsPassesOfItsPipeline() {
        DevicesNeeded.assume(2);
        each(Ranks.local(RANKS), (_, setting) -> {
            List<Pass> passes = setting.pipeline.passes();
            At stage = new At(setting.model, () -> passes.forEach(pass -> assertLent(pass, setting.pipeline)));
            setting.pipeline.run(stage, 4);
            passes.forEach(Pass::begin);
            Pass evaluation = setting.pipeline.evaluationPass();
            setting.pipeline.evaluate(new At(setting.model, () -> assertLent(evaluation, setting.pipeline)), 4);
            evaluation.begin();
        });
    }

    @Test
    void afterARunThatFailedRanksAreOutOfStep() {
        each(hasty(), (rank, setting) -> {
            At broken = new At(setting.model, () -> {
                throw new UnsupportedOperationException("broken");
            });
            RuntimeException thrown = assertThrows(
                    RuntimeException.class, () -> setting.pipeline.run(rank.index() == 0 ? broken : setting.model, 4));
            clock.pass();
            assertEquals(
                    rank.index() == 0 ? UnsupportedOperationException.class : RankFailedException.class,
                    thrown.getClass());
            assertFalse(setting.model.parameters.all().stream().anyMatch(Parameter::hasGradient));
            assertThrown(
                    IllegalStateException.class,
                    "run: expected ranks in step with each other, got the pipeline of 2 stages, rank " + rank.index()
                            + " of 2 after a run that failed, whose transfers other ranks may still wait for; make ranks,"
                            + " Parameters and pipeline anew",
                    () -> setting.pipeline.run(setting.model, 4));
        });
    }

    @Test
    void oneRankGoesOnAfterARunThatFailed() {
        Ranks.local(1).each(rank -> {
            try (Setting setting = new Setting(rank, 1)) {
                At broken = new At(setting.model, () -> {
                    throw new UnsupportedOperationException("broken");
                });
                assertThrows(UnsupportedOperationException.class, () -> setting.pipeline.run(broken, 4));
                setting.pipeline.run(setting.model, 4);
                assertTrue(setting.model.parameters.all().stream().allMatch(Parameter::hasGradient));
            }
        });
    }

    @Test
    void aClosedPipelineNeedsNewParameters() {
        DevicesNeeded.assume(2);
        each(Ranks.local(RANKS), (rank, setting) -> {
            setting.pipeline.close();
            assertThrown(
                    IllegalStateException.class,
                    "the parameters belong to rank " + rank.index()
                            + " of a pipeline of 2 already, even after that is closed;"
                            + " allocate new Parameters of the same part",
                    () -> PipelineParallel.of(
                            setting.model.stages(), setting.model.parameters, PipelineModel.HIDDEN, setting.mesh));
        });
    }

    @Test
    void nothingIsPlacedAfterRanksHaveTheirParts() {
        ModelPlan plan = new ModelPlan();
        new Linear(4, 4, Initializer.normal(0.1f), plan.group("a"));
        PipelinePlan stages = PipelinePlan.of(plan, 1, 1);
        List<@Nullable Parameter> holed =
                new ArrayList<>(Arrays.asList(plan.parameters().getFirst(), null));
        assertThrown(
                NullPointerException.class,
                "parameters: expected values, got null at 1",
                () -> stages.place(0, nulls(holed)));
        assertThrows(IllegalStateException.class, () -> stages.part(0));
        stages.place(0, plan.parameters()).part(0);
        assertThrown(
                IllegalStateException.class,
                "place: expected calls before the first part(rank), got one after it, which parts made before would"
                        + " not follow",
                () -> stages.place(0, plan.parameters()));
    }

    @SuppressWarnings({"NullAway", "unchecked"}) // what a program without such checks may pass
    private static List<Parameter> nulls(List<@Nullable Parameter> holed) {
        return (List<Parameter>) (List<?>) holed;
    }

    @Test
    void ranksThatPlaceOnOtherStagesOfTheSameRankAreRefused() {
        DevicesNeeded.assume(RANKS);
        Ranks.local(RANKS).each(rank -> {
            ModelPlan plan = new ModelPlan();
            PipelinePlan stages = PipelinePlan.of(plan, RANKS, 2);
            for (int i = 0; i < 4; i++) {
                new Linear(4, 4, Initializer.normal(0.1f), plan.group("layers." + i));
                int stage = rank.index() == 1 ? (i + 2) % 4 : i;
                stages.place(stage, plan.group("layers." + i).parameters());
            }
            try (Mesh mesh = Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.PIPELINE, RANKS));
                    Parameters parameters =
                            Parameters.allocate(rank.device(), stages.part(rank.index()), DType.FLOAT32, 1)) {
                assertThrown(
                        IllegalStateException.class,
                        "plan: expected the same on all ranks of the pipeline, got another on rank 1 than on rank 0;"
                                + " declare the whole model on each, with the same types, stages and width and the same"
                                + " parameters frozen",
                        () -> PipelineParallel.of(stages, parameters, 4, mesh));
            }
        });
    }

    @Test
    void aNormThatWouldCountTiedParametersTwiceIsRefused() {
        DevicesNeeded.assume(RANKS);
        Ranks.local(RANKS).each(rank -> {
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.PIPELINE, RANKS);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    PipelineModel model =
                            new PipelineModel(rank.device(), DType.FLOAT32, 2, RANKS, 1, rank.index(), Variant.PLAIN)) {
                new GradientNorm(model.parameters, 1);
                assertThrown(
                        IllegalStateException.class,
                        "parameters: expected no GradientNorm yet, got one, which would count tied parameters of"
                                + " several stages more than once; make the GradientNorm after the pipeline",
                        () -> PipelineParallel.of(model.stages(), model.parameters, PipelineModel.HIDDEN, mesh));
            }
        });
    }

    @Test
    void backwardOfTiedParametersAfterTheirSumIsRefused() {
        each(hasty(), (rank, setting) -> {
            GradientNorm norm = new GradientNorm(setting.model.parameters, 1);
            setting.pipeline.run(setting.model, 4);
            norm.compute();
            setting.model.parameters.forgetGradients();
            setting.pipeline.run(setting.model, 4); // gradients that were forgotten were not summed
            norm.compute();
            RuntimeException thrown =
                    assertThrows(RuntimeException.class, () -> setting.pipeline.run(setting.model, 4));
            clock.pass();
            if (rank.index() == 1) { // whose backward comes first
                assertEquals(
                        "gradient of embedding.weight: summed over the stages that have it already, got another backward"
                                + " call; call norm.compute() after the step's last backward call, and the optimizer's step"
                                + " before the next",
                        thrown.getMessage());
            }
        });
    }

    @Test
    void ranksWithOtherNumbersOfMicroBatchesAreRefused() {
        DevicesNeeded.assume(2);
        each(Ranks.local(RANKS), (rank, setting) -> {
            for (int run = 0; run < 2; run++) {
                int own = run == 0 ? 4 + rank.index() : 4 - 2 * rank.index();
                int other = run == 0 ? 5 : 2;
                assertThrown(
                        IllegalArgumentException.class,
                        "microBatches: expected the same call with the same number on all ranks of the pipeline, got"
                                + " run(stage, " + other + ") on rank 1 and run(stage, 4) on rank 0",
                        () -> setting.pipeline.run(setting.model, own));
                setting.pipeline.run(setting.model, 3);
            }
        });
    }

    @Test
    void aRankThatAloneChangesItsNumberOfMicroBatchesIsNotWaitedForForEver() {
        each(hasty(), (rank, setting) -> {
            setting.pipeline.run(setting.model, 4);
            clock.pass();
            assertThrows(RuntimeException.class, () -> setting.pipeline.run(setting.model, 4 - rank.index()));
        });
    }
}
