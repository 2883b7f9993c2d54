package dev.chagres.pipeline;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.FailingLayer;
import dev.chagres.layer.FailingLayer.Fails;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A stage that loses gradients of earlier micro-batches makes the run fail, even if it hides that from the pipeline. */
@Tag("L0")
@Tag("L2")
class PipelineGradientsTest {
    private static final String MEND = ", so that gradients of earlier micro-batches of the run would be missing; let"
            + " exceptions leave the stage, and forget gradients between runs";

    /** Computes what the model does, and something before or after backward of micro-batch 2. */
    private record Losing(PipelineModel model, Action before, Action after) implements PipelineStage {
        private interface Action {
            void run(Pass pass);
        }

        @Override
        public long tokens(int microBatch) {
            return model.tokens(microBatch);
        }

        @Override
        public void forward(int stage, int microBatch, @Nullable Tensor x, @Nullable Tensor y, Pass pass) {
            if (microBatch == 2) {
                before.run(pass);
            }
            model.forward(stage, microBatch, x, y, pass);
        }

        @Override
        public void backward(int stage, int microBatch, @Nullable Tensor dy, @Nullable Tensor dx, Pass pass) {
            model.backward(stage, microBatch, dy, dx, pass);
            if (microBatch == 2) {
                after.run(pass);
            }
        }
    }

    private static void assertRunFails(String expected, Losing.Action before, Losing.Action after) {
        Ranks.local(1).each(rank -> {
            try (PipelineMisuseTest.Setting setting = new PipelineMisuseTest.Setting(rank, 1)) {
                assertThrown(
                        IllegalStateException.class,
                        expected + MEND,
                        () -> setting.pipeline.run(new Losing(setting.model, before, after), 4));
                assertFalse(setting.model.parameters.all().stream().anyMatch(Parameter::hasGradient));
                setting.pipeline.run(setting.model, 4);
            }
        });
    }

    @Test
    void gradientsThatAStageForgets() {
        Ranks.local(1).each(rank -> {
            try (PipelineMisuseTest.Setting setting = new PipelineMisuseTest.Setting(rank, 1)) {
                for (boolean first : new boolean[] {true, false}) {
                    Losing.Action forget = pass -> setting.model.parameters.forgetGradients();
                    Losing.Action nothing = pass -> {};
                    assertThrown(
                            IllegalStateException.class,
                            "stage 0: expected gradients kept in " + (first ? "forward" : "backward")
                                    + " of micro-batch 2, got a call of Parameters.forgetGradients()" + MEND,
                            () -> setting.pipeline.run(
                                    new Losing(setting.model, first ? forget : nothing, first ? nothing : forget), 4));
                }
                setting.model.parameters.forgetGradients();
                setting.pipeline.run(setting.model, 4);
            }
        });
    }

    @Test
    void aBackwardCallWhoseFailureAStageHides() {
        FailingLayer failing = FailingLayer.copying(Fails.BACKWARD);
        assertRunFails(
                "stage 0: expected gradients kept in backward of micro-batch 2, got a backward call that has failed",
                pass -> {},
                pass -> {
                    Tensor x = pass.scope().tensor(DType.FLOAT32, 2, 2);
                    x.zero(pass.stream());
                    failing.forward(x, pass);
                    assertThrows(IllegalStateException.class, () -> failing.backward(x, pass));
                });
    }
}
