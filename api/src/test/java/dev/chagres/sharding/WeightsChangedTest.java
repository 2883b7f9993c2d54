package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.io.Safetensors;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import java.nio.file.Path;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A backward call that would read other weights than its forward call is refused, and the micro-batch can be repeated. */
@Tag("L0")
@Tag("L1")
class WeightsChangedTest {
    private static void forward(SmallModel model, Pass pass) {
        int[][] batch = SmallModel.batch(1, 4, 3);
        pass.begin();
        pass.sequences(Sequences.packed(pass.scope(), 4, 3));
        model.crossEntropy.forward(
                model.logits(pass, model.ints(pass.scope(), batch[0])), model.ints(pass.scope(), batch[1]), pass);
    }

    private static void assertRefused(SmallModel model, Pass pass) {
        String text = String.valueOf(assertThrows(IllegalStateException.class, () -> model.backward(pass))
                .getMessage());
        assertTrue(text.startsWith("backward: expected weights as forward has read them, got "), text);
        assertTrue(
                text.endsWith(
                        " of parameters that have changed since: an optimizer's step, changed(), a loaded state or a write"
                                + " by set, copyFrom or zero came between; call backward before it, or pass.begin() and forward again"),
                text);
    }

    private static void refused(UnaryOperator<Layer> wrapper, Consumer<SmallModel> change) {
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, DType.FLOAT32, 0, wrapper, plan -> {});
                Pass pass = Pass.training(device)) {
            forward(model, pass);
            model.backward(pass);
            forward(model, pass);
            change.accept(model);
            assertRefused(model, pass);
            forward(model, pass);
            model.backward(pass);
            float[] repeated = model.parameters.gradients().toFloats(device.stream());
            model.parameters.forgetGradients();
            forward(model, pass);
            model.backward(pass);
            assertArrayEquals(model.parameters.gradients().toFloats(device.stream()), repeated, 1e-3f);
        }
    }

    @Test
    void aStepOfTheOptimizer() {
        refused(UnaryOperator.identity(), model -> {
            try (AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard())) {
                optimizer.step(1e-2f);
            }
        });
    }

    /** A graph writes them as well, at each launch. */
    @Test
    void aStepThatAGraphReplays() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device)) {
            optimizer.step(1e-2f);
            forward(model, pass);
            model.backward(pass);
            try (Graph graph = device.stream().capture(() -> optimizer.step(1e-2f))) {
                graph.launch();
                forward(model, pass);
                model.backward(pass);
                forward(model, pass);
                graph.launch();
                assertRefused(model, pass);
            }
        }
    }

    @Test
    void whatIsToldOfChanges() {
        refused(UnaryOperator.identity(), model -> model.parameters.changed());
    }

    @Test
    void aWeightThatIsWritten() {
        refused(UnaryOperator.identity(), model -> {
            Tensor weight = model.parameters.all().getFirst().weight();
            weight.set(model.device.stream(), weight.toFloats(model.device.stream()));
        });
        refused(Recomputed::new, model -> {
            Tensor weights = model.parameters.weights();
            Tensor copy = model.parameters.scope().like(weights);
            copy.copyFrom(model.device.stream(), weights);
            weights.copyFrom(model.device.stream(), copy);
        });
    }

    /** A launch writes as a call does. */
    @Test
    void aWeightThatAGraphWrites() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Pass pass = Pass.training(device)) {
            Tensor weight = model.parameters.all().getFirst().weight();
            Tensor copy = model.parameters.scope().like(weight);
            copy.copyFrom(device.stream(), weight);
            forward(model, pass);
            model.backward(pass);
            try (Graph graph = device.stream().capture(() -> weight.copyFrom(device.stream(), copy))) {
                forward(model, pass);
                model.backward(pass);
                forward(model, pass);
                graph.launch();
                assertRefused(model, pass);
            }
        }
    }

    /** Inputs, gradients, and weights of another type that forward has not read. */
    @Test
    void otherWritesRefuseNothing() {
        ModelPlan plan = new ModelPlan();
        Linear linear = new Linear(16, 16, Initializer.normal(1), plan.group("linear"));
        Parameter other = plan.group("other").declareAs(DType.FLOAT32, "other", Initializer.ones(), 16); // of no layer
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
                Pass pass = Pass.training(device)) {
            pass.begin();
            Tensor x = pass.scope().tensor(DType.BFLOAT16, 16, 16);
            x.zero(device.stream());
            linear.forward(x, pass);
            other.weight().zero(device.stream());
            parameters.gradients().zero(device.stream());
            Tensor dy = pass.scope().tensor(DType.BFLOAT16, 16, 16);
            dy.zero(device.stream());
            linear.backward(dy, pass);
            assertTrue(linear.weight().hasGradient());
        }
    }

    @Test
    void aLoadedState(@TempDir Path directory) {
        Path file = directory.resolve("weights.safetensors");
        refused(UnaryOperator.identity(), model -> {
            Safetensors.save(file, model.parameters.state(), model.device.stream(), Map.of());
            Safetensors.load(file, model.parameters.state(), model.device.stream());
        });
    }

    /** The second forward of a recomputed layer reads the weights once more. */
    @Test
    void aRecomputedLayer() {
        refused(Recomputed::new, model -> model.parameters.changed());
        try (Device device = Device.open();
                SmallModel model = new SmallModel(device, DType.FLOAT32, 0, Recomputed::new, plan -> {
                    plan.groups().forEach((name, members) -> {
                        if (!name.equals("layers.3")) {
                            members.forEach(Parameter::freeze);
                        }
                    });
                });
                Pass pass = Pass.training(device)) {
            forward(model, pass);
            model.parameters.changed();
            assertRefused(model, pass);
        }
    }

    /** What changes other weights, or none, refuses nothing. */
    @Test
    void otherModelsAndEvaluation() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                SmallModel other = SmallModel.plain(device, DType.FLOAT32);
                AdamW optimizer = new AdamW(other.parameters, AdamW.Config.standard());
                Pass pass = Pass.training(device);
                Pass evaluation = Pass.evaluation(device)) {
            forward(model, pass);
            optimizer.step(1e-2f);
            forward(model, evaluation);
            model.backward(pass);
            assertTrue(model.parameters.all().stream().allMatch(Parameter::hasGradient));
        }
    }

    /** Backward of stage 3 gathers the weights once more. */
    @Test
    void sharedWeights() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            FullySharded[] made = new FullySharded[1];
            try (SmallModel model =
                            new SmallModel(rank.device(), DType.FLOAT32, 0, UnaryOperator.identity(), p -> {}, plan -> {
                                made[0] = FullySharded.allocate(
                                        plan, DType.FLOAT32, 1, ZeroStage.THREE, rank.communicator());
                                return made[0].parameters();
                            });
                    FullySharded strategy = made[0];
                    AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
                    Pass pass = Pass.training(rank.device())) {
                strategy.follow(pass);
                forward(model, pass);
                strategy.sumGradients();
                optimizer.step(1e-2f);
                assertRefused(model, pass);
                forward(model, pass);
                model.backward(pass);
                strategy.sumGradients();
                optimizer.step(1e-2f);
                Parameters parameters = model.parameters;
                assertFalse(parameters.all().isEmpty());
            }
        });
    }
}
