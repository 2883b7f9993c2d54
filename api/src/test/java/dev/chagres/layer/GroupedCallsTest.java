package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.util.function.Function;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Groups run collectives at their end: what reads their results is refused inside, and nothing is lost by it. */
@Tag("L0")
@Tag("L2")
class GroupedCallsTest {
    private static final int HIDDEN = 16;
    private static final int ROWS = 4;

    /** Takes a call of a step, and the name that a refusal has. */
    private interface Caller {
        void call(String name, Runnable call);
    }

    private static void refused(String name, Runnable call) {
        assertThrown(
                IllegalStateException.class,
                name + ": expected a call outside of Communicator.group, got one inside; the group's collectives run at"
                        + " its end, and until then need their memory and have no results; call it after the group",
                () -> Communicator.group(call));
    }

    /** Takes one step and returns what the model computes then. */
    private static float[] step(Strategy training, Layer layer, Caller caller) {
        Parameters parameters = training.parameters();
        Stream stream = parameters.scope().stream();
        try (training;
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(stream);
                Pass evaluation = Pass.evaluation(stream)) {
            training.follow(pass);
            training.follow(evaluation);
            GradientNorm norm = new GradientNorm(parameters, 1);
            pass.begin();
            Tensor x = pass.scope().tensor(DType.FLOAT32, ROWS, HIDDEN);
            Tensor y = pass.scope().like(x);
            Tensor dx = pass.scope().like(x);
            float[] values = new float[ROWS * HIDDEN];
            for (int i = 0; i < values.length; i++) {
                values[i] = (float) Math.sin(i);
            }
            x.set(stream, values);
            training.lastMicroBatch();
            caller.call("layer", () -> layer.forward(x, y, pass));
            caller.call("layer", () -> layer.backward(y, dx, pass));
            caller.call("sumGradients", training::sumGradients);
            caller.call("compute", norm::compute);
            caller.call("completeGradients", parameters::completeGradients);
            caller.call("step", () -> optimizer.step(1e-2f, norm));
            return layer.forward(x, evaluation.begin()).toFloats(stream);
        }
    }

    private static float[] step(Function<ModelPlan, Strategy> strategy, Caller caller) {
        ModelPlan plan = new ModelPlan();
        Layer layer = new Linear(HIDDEN, HIDDEN, Initializer.normal(0.3f), plan.group("layer"));
        return step(strategy.apply(plan), layer, caller);
    }

    private static void refuses(Function<ModelPlan, Strategy> strategy) {
        float[] expected = step(strategy, (name, call) -> call.run());
        float[] got = step(strategy, (name, call) -> {
            refused(name, call);
            call.run();
        });
        assertArrayEquals(expected, got);
    }

    @Test
    void stepsAreRefused() {
        Ranks.local(1).each(rank -> {
            for (ZeroStage stage : ZeroStage.values()) {
                refuses(plan -> FullySharded.allocate(plan, DType.FLOAT32, 7, stage, rank.communicator()));
            }
        });
    }

    @Test
    void theEndOfAStepIsRefused() {
        Ranks.local(1).each(rank -> {
            ModelPlan plan = new ModelPlan();
            new Linear(HIDDEN, HIDDEN, Initializer.normal(0.3f), plan.group("layer"));
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.FLOAT32, 7);
                    DataParallel training = DataParallel.of(parameters, rank.communicator())) {
                training.sumGradients();
                refused("nextStep", parameters::nextStep);
                refused("nextStep", () -> parameters.nextStep(parameters.scope().tensor(DType.INT32, 1)));
                parameters.nextStep();
            }
        });
    }
}
