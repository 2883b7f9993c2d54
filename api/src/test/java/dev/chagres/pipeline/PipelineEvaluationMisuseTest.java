package dev.chagres.pipeline;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.nccl.StoppedClock;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineMisuseTest.At;
import dev.chagres.pipeline.PipelineMisuseTest.Setting;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What an evaluation through a pipeline refuses, and what is left of one that has failed. */
@Tag("L0")
@Tag("L2")
class PipelineEvaluationMisuseTest {
    private static final int RANKS = PipelineMisuseTest.RANKS;

    /** Time passes once a rank waits in vain. */
    private final StoppedClock clock = new StoppedClock();

    @AfterEach
    void goOn() {
        clock.close();
    }

    private static At broken(Setting setting) {
        return new At(setting.model, () -> {
            throw new UnsupportedOperationException("broken");
        });
    }

    @Test
    void aStageMakesNoOtherCallOfItsPipeline() {
        DevicesNeeded.assume(RANKS);
        PipelineMisuseTest.each(Ranks.local(RANKS), (rank, setting) -> {
            String got = ": expected a call outside of a PipelineStage, got one by a stage of the pipeline of 2 stages,"
                    + " rank " + rank.index() + " of 2, in the middle of ";
            At run = new At(
                    setting.model,
                    () -> assertThrown(
                            IllegalStateException.class,
                            "evaluate" + got + "a run",
                            () -> setting.pipeline.evaluate(setting.model, 4)));
            setting.pipeline.run(run, 4);
            At evaluation = new At(setting.model, () -> {
                assertThrown(
                        IllegalStateException.class,
                        "evaluate" + got + "an evaluation",
                        () -> setting.pipeline.evaluate(setting.model, 4));
                assertThrown(
                        IllegalStateException.class,
                        "run" + got + "an evaluation",
                        () -> setting.pipeline.run(setting.model, 4));
                assertThrown(IllegalStateException.class, "close" + got + "an evaluation", setting.pipeline::close);
            });
            setting.pipeline.evaluate(evaluation, 4);
        });
    }

    @Test
    void afterAnEvaluationThatFailedRanksAreOutOfStep() {
        PipelineMisuseTest.each(PipelineMisuseTest.hasty(), (rank, setting) -> {
            setting.pipeline.run(setting.model, 4);
            RuntimeException thrown = assertThrows(
                    RuntimeException.class,
                    () -> setting.pipeline.evaluate(rank.index() == 0 ? broken(setting) : setting.model, 4));
            clock.pass();
            assertEquals(
                    rank.index() == 0 ? UnsupportedOperationException.class : RankFailedException.class,
                    thrown.getClass());
            assertTrue(setting.model.parameters.all().stream().allMatch(Parameter::hasGradient), "of the run");
            assertFalse(setting.pipeline.evaluationPass().isBegun());
            String got = ": expected ranks in step with each other, got the pipeline of 2 stages, rank " + rank.index()
                    + " of 2 after an evaluation that failed, whose transfers other ranks may still wait for; make ranks,"
                    + " Parameters and pipeline anew";
            assertThrown(
                    IllegalStateException.class, "evaluate" + got, () -> setting.pipeline.evaluate(setting.model, 4));
            assertThrown(IllegalStateException.class, "run" + got, () -> setting.pipeline.run(setting.model, 4));
        });
    }

    @Test
    void afterARunThatFailedNoneEvaluates() {
        PipelineMisuseTest.each(PipelineMisuseTest.hasty(), (rank, setting) -> {
            assertThrows(
                    RuntimeException.class,
                    () -> setting.pipeline.run(rank.index() == 1 ? broken(setting) : setting.model, 4));
            clock.pass();
            assertThrown(
                    IllegalStateException.class,
                    "evaluate: expected ranks in step with each other, got the pipeline of 2 stages, rank "
                            + rank.index()
                            + " of 2 after a run that failed, whose transfers other ranks may still wait for;"
                            + " make ranks, Parameters and pipeline anew",
                    () -> setting.pipeline.evaluate(setting.model, 4));
        });
    }

    /** What has failed changes no gradient of the step under way. */
    @Test
    void oneRankRepeatsAnEvaluationThatFailed() {
        Ranks.local(1).each(rank -> {
            try (Setting setting = new Setting(rank, 1)) {
                setting.pipeline.run(setting.model, 4);
                Map<String, float[]> before = setting.model.gradients();
                assertThrows(UnsupportedOperationException.class, () -> setting.pipeline.evaluate(broken(setting), 4));
                setting.pipeline.evaluate(setting.model, 4);
                setting.model.gradients().forEach((name, values) -> assertArrayEquals(before.get(name), values, name));
            }
        });
    }

    @Test
    void ranksWithOtherNumbersOrCallsAreRefused() {
        DevicesNeeded.assume(RANKS);
        PipelineMisuseTest.each(Ranks.local(RANKS), (rank, setting) -> {
            String expected =
                    "microBatches: expected the same call with the same number on all ranks of the pipeline, got ";
            assertThrown(
                    IllegalArgumentException.class,
                    expected + "evaluate(stage, 3) on rank 1 and evaluate(stage, 4) on rank 0",
                    () -> setting.pipeline.evaluate(setting.model, 4 - rank.index()));
            assertThrown(
                    IllegalArgumentException.class,
                    expected + "run(stage, 4) on rank 1 and evaluate(stage, 4) on rank 0",
                    () -> {
                        if (rank.index() == 0) {
                            setting.pipeline.evaluate(setting.model, 4);
                        } else {
                            setting.pipeline.run(setting.model, 4);
                        }
                    });
            setting.pipeline.evaluate(setting.model, 4);
            setting.pipeline.run(setting.model, 4);
        });
    }

    @Test
    void aRankThatAloneEvaluatesIsNotWaitedForForEver() {
        PipelineMisuseTest.each(PipelineMisuseTest.hasty(), (rank, setting) -> {
            setting.pipeline.run(setting.model, 4);
            setting.pipeline.evaluate(setting.model, 4);
            clock.pass();
            if (rank.index() == 0) {
                assertThrows(RankFailedException.class, () -> setting.pipeline.run(setting.model, 4));
            } else {
                assertThrows(RuntimeException.class, () -> {
                    setting.pipeline.evaluate(setting.model, 4);
                    setting.pipeline.run(setting.model, 4);
                });
            }
        });
    }

    @Test
    void numbersThatNoEvaluationHasAreRefused() {
        DevicesNeeded.assume(RANKS);
        PipelineMisuseTest.each(
                Ranks.local(RANKS),
                (rank, setting) -> assertThrown(
                        IllegalArgumentException.class,
                        "microBatches: expected at most 524288 through 2 stages, for an evaluation has at most 1048576"
                                + " forward calls, got 600000000",
                        () -> setting.pipeline.evaluate(setting.model, 600_000_000)));
    }

    /** Refuses backward, and passes that train. */
    private record ForwardAlone(PipelineModel model) implements PipelineStage {
        @Override
        public long tokens(int microBatch) {
            return model.tokens(microBatch);
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            assertFalse(pass.isTraining());
            assertFalse(pass.isSaving());
            model.forward(stage, microBatch, x, y, pass);
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            throw new AssertionError("an evaluation goes forward alone");
        }
    }

    @Test
    void anEvaluationGoesForwardAlone() {
        DevicesNeeded.assume(RANKS);
        PipelineMisuseTest.each(Ranks.local(RANKS), (rank, setting) -> {
            setting.pipeline.evaluate(new ForwardAlone(setting.model), 4);
            assertFalse(setting.model.parameters.all().stream().anyMatch(Parameter::hasGradient));
            assertEquals(0, setting.model.parameters.step());
            assertTrue(setting.pipeline.passes().stream().noneMatch(Pass::isBegun));
        });
    }
}
