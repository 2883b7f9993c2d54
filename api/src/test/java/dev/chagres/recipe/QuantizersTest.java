package dev.chagres.recipe;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.layer.FailingLayer;
import dev.chagres.layer.FailingLayer.Fails;
import dev.chagres.layer.Linear;
import dev.chagres.ops.Elementwise;
import dev.chagres.parameter.CounterRandom;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Pass;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What a recipe keeps from step to step: when scales change, what is recorded, which weights are cast anew. */
@Tag("L0")
@Tag("L1")
class QuantizersTest {
    private static final int TOKENS = 16;
    private static final int SIZE = 32;
    private static final DelayedScaling RECIPE = DelayedScaling.standard().withAmaxHistoryLength(3);

    private Device device;
    private Linear linear;
    private Linear head;
    private Parameters parameters;
    private Quantizers quantizers;
    private Pass pass;
    private Pass evaluation;

    @BeforeEach
    void open() {
        device = Device.open();
        open(RECIPE);
    }

    private void open(Recipe recipe) {
        ModelPlan plan = new ModelPlan();
        linear = new Linear(SIZE, SIZE, Initializer.normal(1), plan.group("body"));
        head = new Linear(SIZE, SIZE, Initializer.normal(1), plan.group("head"));
        parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 3);
        quantizers = Quantizers.allocate(parameters, recipe);
        pass = Pass.training(device);
        evaluation = Pass.evaluation(device);
    }

    @AfterEach
    void close() {
        evaluation.close();
        pass.close();
        parameters.close();
        device.close();
    }

    private Tensor input(Pass of, long key, float largest) {
        float[] values = new float[TOKENS * SIZE];
        for (int i = 0; i < values.length; i++) {
            values[i] = Math.clamp(CounterRandom.normal(key, i) > 0 ? 0.5f : -0.25f, -largest, largest);
        }
        values[7] = largest;
        Tensor x = of.scope().tensor(DType.BFLOAT16, TOKENS, SIZE);
        x.set(device.stream(), values);
        return x;
    }

    private float[] forward(Pass of, float largest) {
        of.begin();
        of.autocast(quantizers);
        return linear.forward(input(of, 1, largest), of).toFloats(device.stream());
    }

    private void trainOnce(float largest, float largestGradient) {
        forward(pass, largest);
        linear.backward(input(pass, 2, largestGradient), pass);
    }

    private float[] read(String name) {
        Map<String, Tensor> state = quantizers.state().tensors();
        return switch (name) {
            case "forward.scale" -> new float[] {scale(state, "input"), scale(state, "weight")};
            case "backward.scale" -> new float[] {scale(state, "output_gradient")};
            case "forward.amax_history" ->
                state.get("quantizers.forward.float8_e4m3.amax_history").toFloats(device.stream());
            default -> state.get("quantizers.backward.float8_e5m2.amax_history").toFloats(device.stream());
        };
    }

    private float scale(Map<String, Tensor> state, String place) {
        return state.get("body." + place + ".scale").toFloats(device.stream())[0];
    }

    @Test
    void scalesFollowTheLargestOfTheHistoryOnceAStep() {
        assertArrayEquals(new float[] {1, 1}, read("forward.scale"));
        trainOnce(8, 4);
        trainOnce(2, 16);
        assertArrayEquals(new float[] {1, 1}, read("forward.scale"), "within a step scales stay");
        assertEquals(8, read("forward.amax_history")[0], "the largest of both passes");
        parameters.nextStep();
        assertEquals(448f / 8, read("forward.scale")[0]);
        assertEquals(57344f / 16, read("backward.scale")[0]);
        assertEquals(0, read("forward.amax_history")[0]);
        trainOnce(2, 16);
        parameters.nextStep();
        assertEquals(448f / 8, read("forward.scale")[0], "the step before is remembered");
        for (int i = 0; i < 2; i++) {
            trainOnce(2, 16);
            parameters.nextStep();
        }
        assertEquals(448f / 2, read("forward.scale")[0], "three steps on it is forgotten");
    }

    @Test
    void evaluationChangesNothing() {
        trainOnce(8, 4);
        parameters.nextStep();
        float[] scales = read("forward.scale");
        float[] history = read("forward.amax_history");
        float[] first = forward(evaluation, 100);
        assertArrayEquals(history, read("forward.amax_history"));
        assertArrayEquals(first, forward(evaluation, 100));
        float[] trained = forward(pass, 3);
        assertEquals(3, read("forward.amax_history")[0]);
        assertTrue(read("forward.amax_history")[1] > 0, "the weight that evaluation had cast is recorded all the same");
        assertArrayEquals(trained, forward(evaluation, 3), "the same weight in eight bits");
        assertArrayEquals(scales, read("forward.scale"));
    }

    @Test
    void weightsAreCastAgainOnlyWhenTheyMayHaveChanged() {
        float[] before = forward(pass, 1);
        float[] zeros = new float[SIZE * SIZE];
        Tensor weight = linear.weight().weight();
        Elementwise.add(weight, weight, weight, device.stream());
        assertArrayEquals(before, forward(pass, 1), "nobody said that a kernel changed weights");
        parameters.changed();
        float[] doubled = forward(pass, 1);
        assertFalse(Arrays.equals(before, doubled));
        weight.set(device.stream(), zeros);
        assertArrayEquals(new float[TOKENS * SIZE], forward(pass, 1), "a copy from the host is noticed");
        parameters.scope().view(parameters.weights(), 0, 16).set(device.stream(), new float[16]);
        assertArrayEquals(new float[TOKENS * SIZE], forward(pass, 1));
    }

    @Test
    void belongToTheStreamOfTheirParameters() {
        try (Stream other = device.openStream();
                Pass elsewhere = Pass.training(other)) {
            String text =
                    "quantizers: expected those of parameters on the pass's own stream, for weights are cast once for all"
                            + " passes, in that stream's order; make the pass on parameters.scope().stream()";
            assertThrown(IllegalArgumentException.class, text, () -> elsewhere.autocast(quantizers));
            assertThrown(IllegalArgumentException.class, text, () -> elsewhere.calibrate(quantizers));
            assertNull(elsewhere.quantizers());
        }
    }

    @Test
    void calibratingComputesInTheModelsTypeAndRecords() {
        pass.begin();
        float[] plain = linear.forward(input(pass, 1, 5), pass).toFloats(device.stream());
        pass.begin();
        pass.calibrate(quantizers);
        Tensor y = linear.forward(input(pass, 1, 5), pass);
        assertTrue(pass.isCalibrating());
        assertArrayEquals(plain, y.toFloats(device.stream()));
        linear.backward(input(pass, 2, 6), pass);
        assertEquals(5, read("forward.amax_history")[0]);
        assertEquals(6, read("backward.amax_history")[0]);
        float[] quantized = forward(pass, 5);
        assertFalse(Arrays.equals(plain, quantized));
        pass.noAutocast();
        pass.begin();
        assertArrayEquals(plain, linear.forward(input(pass, 1, 5), pass).toFloats(device.stream()));
    }

    @Test
    void theHeadKeepsTheModelsTypeUnlessToldOtherwise() {
        assertTrue(quantizers.covers(parameters.quantizers().getFirst()));
        assertFalse(quantizers.covers(parameters.quantizers().getLast()));
        pass.begin();
        float[] plain = head.forward(input(pass, 1, 1), pass).toFloats(device.stream());
        pass.autocast(quantizers);
        pass.begin();
        assertArrayEquals(plain, head.forward(input(pass, 1, 1), pass).toFloats(device.stream()));
        try (Quantizers all = Quantizers.allocate(parameters, RECIPE, Set.of("body"))) {
            pass.autocast(all);
            pass.begin();
            assertNotEquals(plain[0], head.forward(input(pass, 1, 1), pass).toFloats(device.stream())[0]);
            assertTrue(head.explain(input(pass, 1, 1), pass).contains("in eight bits"));
            assertTrue(linear.explain(input(pass, 1, 1), pass)
                    .contains("body.input of group body keeps the model's type"));
        }
    }

    @Test
    void partsOfANameMayRepeat() {
        ModelPlan repeated = new ModelPlan();
        new Linear(SIZE, SIZE, Initializer.ones(), repeated.child("block").child("block"));
        new Linear(
                SIZE,
                SIZE,
                Initializer.ones(),
                repeated.child("block").child("head").child("head"));
        for (WeightStorage storage : WeightStorage.values()) {
            try (Parameters named = Parameters.allocate(device, repeated, DType.BFLOAT16, 1, storage);
                    Quantizers covering = Quantizers.allocate(named, RECIPE)) {
                assertEquals(
                        List.of(true, true, true, false, false, false),
                        named.quantizers().stream().map(covering::covers).toList());
            }
        }
    }

    @Test
    void anAbandonedStepLeavesNoTrace() {
        trainOnce(8, 4);
        parameters.forgetGradients();
        trainOnce(2, 1);
        parameters.nextStep();
        assertEquals(448f / 2, read("forward.scale")[0]);
        assertEquals(57344f, read("backward.scale")[0]);
    }

    @Test
    void aForwardThatFailsLeavesNoTrace() {
        pass.begin();
        pass.autocast(quantizers);
        FailingLayer failing = FailingLayer.around(linear, Fails.FORWARD);
        Tensor x = input(pass, 1, 1e7f);
        assertThrows(IllegalStateException.class, () -> failing.forward(x, pass));
        trainOnce(2, 1);
        parameters.nextStep();
        assertEquals(448f / 2, read("forward.scale")[0]);
    }

    @Test
    void aTiedWeightFollowsItsOwner() {
        ModelPlan plan = new ModelPlan();
        Linear tied = Linear.tied(linear.weight(), plan.group("tied"));
        try (Parameters others = Parameters.allocate(device, plan, DType.BFLOAT16, 1)) {
            Quantizers ofOthers = Quantizers.allocate(others, Float8CurrentScaling.standard());
            pass.begin();
            pass.autocast(ofOthers);
            tied.forward(input(pass, 1, 1), pass);
            linear.weight().weight().zero(device.stream());
            parameters.changed();
            pass.begin();
            float[] y = tied.forward(input(pass, 1, 1), pass).toFloats(device.stream());
            assertArrayEquals(new float[TOKENS * SIZE], y);
        }
    }

    @Test
    void savedInTheMiddleOfAStepNothingIsLost(@TempDir Path folder) throws Exception {
        trainOnce(8, 4);
        float[] history = read("forward.amax_history");
        Path file = folder.resolve("middle.safetensors");
        State both = State.of(parameters.state(), quantizers.state());
        Safetensors.save(file, both, device.stream(), Map.of());
        trainOnce(100, 4);
        Safetensors.load(file, both, device.stream());
        assertArrayEquals(history, read("forward.amax_history"));
    }

    @Test
    void scalesOfAnotherTypeDoNotLoad(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("hybrid.safetensors");
        Safetensors.save(file, quantizers.state(), device.stream(), Map.of());
        try (Quantizers other = Quantizers.allocate(parameters, RECIPE.withFormat(Format.E4M3))) {
            assertThrows(SafetensorsException.class, () -> Safetensors.load(file, other.state(), device.stream()));
        }
    }

    /** Scales and magnitudes that no step can have made are refused before anything is loaded. */
    @Test
    void impossibleScalesDoNotLoad(@TempDir Path folder) throws Exception {
        trainOnce(8, 4);
        Path file = folder.resolve("edited.safetensors");
        String history = "quantizers.forward.float8_e4m3.amax_history";
        float inf = Float.POSITIVE_INFINITY;
        for (float wrong : new float[] {Float.NaN, 0, -0f, 1e-45f, -1, inf, -inf}) {
            refuses(file, "body.weight.scale", 0, wrong, "finite numbers from " + Float.MIN_NORMAL + " on");
        }
        for (float wrong : new float[] {Float.NaN, -1, -inf}) {
            refuses(file, history, 2, wrong, "numbers from 0 on");
        }
        saveWith(file, history, 2, inf); // An infinite value was cast: its step changes no scale.
        Safetensors.load(file, State.of(parameters.state(), quantizers.state()), device.stream());
        assertEquals(inf, read("forward.amax_history")[2]);
    }

    private void refuses(Path file, String edited, int element, float wrong, String expected) {
        saveWith(file, edited, element, wrong);
        trainOnce(16, 4);
        parameters.weights().zero(device.stream());
        float[] before = read("forward.amax_history");
        State all = State.of(parameters.state(), quantizers.state());
        assertThrown(
                SafetensorsException.class,
                file + ": tensor \"" + edited + "\": expected " + expected + ", got " + wrong + " at element "
                        + element,
                () -> Safetensors.load(file, all, device.stream()));
        assertArrayEquals(before, read("forward.amax_history"));
        assertEquals(0, linear.weight().weight().toFloats(device.stream())[0]);
        parameters.forgetGradients();
    }

    /** Saves the state with another element in one tensor. */
    private void saveWith(Path file, String edited, int element, float value) {
        State state = State.of(parameters.state(), quantizers.state());
        Tensor tensor = state.tensors().get(edited);
        float[] before = tensor.toFloats(device.stream());
        float[] changed = before.clone();
        changed[element] = value;
        tensor.set(device.stream(), changed);
        Safetensors.save(file, state, device.stream(), Map.of());
        tensor.set(device.stream(), before);
    }

    @Test
    void aLoadedStateGoesOnWithTheSameBits(@TempDir Path folder) throws Exception {
        for (int i = 0; i < 3; i++) {
            trainOnce(8 - i, 4);
            parameters.nextStep();
        }
        Path file = folder.resolve("state.safetensors");
        Safetensors.save(file, State.of(parameters.state(), quantizers.state()), device.stream(), Map.of());
        float[] expected = forward(pass, 5);
        for (int i = 0; i < 4; i++) {
            trainOnce(100, 4);
            parameters.nextStep();
        }
        assertFalse(Arrays.equals(expected, forward(pass, 5)));
        Safetensors.load(file, State.of(parameters.state(), quantizers.state()), device.stream());
        assertArrayEquals(expected, forward(pass, 5));
        assertEquals(3, parameters.step());
    }

    @Test
    void recipesWithoutMemoryHaveNoState() {
        for (Recipe recipe : new Recipe[] {Float8CurrentScaling.standard(), Float8BlockScaling.standard()}) {
            try (Quantizers other = Quantizers.allocate(parameters, recipe)) {
                assertEquals(Set.of(), other.state().tensors().keySet());
                assertEquals(3, other.toString().split(" at ")[1].charAt(0) - '0');
            }
        }
    }

    @Test
    void aSteadyStepMakesNoGarbage() {
        pass.begin();
        pass.autocast(quantizers);
        Tensor[] given = new Tensor[2];
        try (dev.chagres.Scope inputs = device.openScope()) {
            for (int i = 0; i < 2; i++) {
                given[i] = inputs.tensor(DType.BFLOAT16, TOKENS + 3, SIZE);
                given[i].zero(device.stream());
            }
            Allocation.assertNone(
                    "a step in eight bits",
                    () -> {
                        pass.begin();
                        linear.forward(given[0], pass);
                        linear.backward(given[1], pass);
                        parameters.nextStep();
                        evaluation.begin();
                        evaluation.autocast(quantizers);
                        linear.forward(given[0], evaluation);
                    },
                    50);
        }
    }
}
