package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.io.Safetensors;
import dev.chagres.optim.SGD.Config;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.MultiTensor;
import dev.chagres.te.MultiTensor.SgdStep;
import dev.chagres.te.SgdConfig;
import dev.chagres.te.TensorLists;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of {@code SGD} against double precision and Transformer Engine's kernel; masters, groups, skipped steps, graphs and files. */
@Tag("L0")
@Tag("L1")
class SGDTest {
    private static final Config CONFIG = Config.standard().withMomentum(0.9f).withWeightDecay(0.1f);
    private static final float RATE = 1e-2f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @TempDir
    private Path folder;

    /** Two of the vectors are longer than a row of the kernel, and no multiple of it. */
    private static Parameters parameters(DType dtype) {
        ModelPlan plan = new ModelPlan();
        plan.group("body").declare("a", Initializer.normal(1), 17, 90);
        plan.group("body").declare("b", Initializer.normal(1), 33);
        plan.group("head").declare("c", Initializer.normal(1), 5, 8);
        plan.group("head").declareAs(DType.FLOAT32, "d", Initializer.normal(1), 4, 3);
        return Parameters.allocate(open.device(), plan, dtype, 3);
    }

    private static double[] gradient(Parameter parameter, int step) {
        double[] values = new double[(int) parameter.shape().count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(step + 0.37 * i + parameter.name().hashCode() % 7);
        }
        return values;
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        parameters.all().forEach(parameter -> open.set(parameter.gradient(), gradient(parameter, step)));
    }

    private static Map<String, float[]> weights(Parameters parameters) {
        Map<String, float[]> weights = new LinkedHashMap<>();
        parameters.all().forEach(parameter -> weights.put(parameter.name(), open.read(parameter.weight())));
        return weights;
    }

    private static void assertSame(Map<String, float[]> expected, Map<String, float[]> actual, float bound) {
        expected.forEach((name, values) -> assertArrayEquals(values, actual.get(name), bound, name));
    }

    /** The method in double precision, on one parameter. */
    private static float[] descended(Parameter parameter, float[] first, Config config, float rate, int steps) {
        double decay = parameter.shape().rank() > 1 ? config.weightDecay() : 0;
        double[] weight = new double[first.length];
        double[] momentum = new double[first.length];
        for (int i = 0; i < first.length; i++) {
            weight[i] = first[i];
        }
        for (int step = 0; step < steps; step++) {
            double[] gradient = gradient(parameter, step);
            for (int i = 0; i < first.length; i++) {
                momentum[i] = config.momentum() * momentum[i] + gradient[i] + decay * weight[i];
                weight[i] -= (double) rate * momentum[i];
            }
        }
        float[] result = new float[first.length];
        for (int i = 0; i < first.length; i++) {
            result[i] = (float) weight[i];
        }
        return result;
    }

    /** Of 16-bit weights the masters are compared. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void agreesWithDoublePrecision(DType dtype) {
        for (Config config : List.of(CONFIG, Config.standard())) {
            try (Parameters parameters = parameters(dtype);
                    SGD sgd = new SGD(parameters, config)) {
                Map<String, float[]> first = weights(parameters);
                // @start region="optimizer"
                for (int step = 0; step < 10; step++) {
                    gradients(parameters, step); // forward and backward
                    sgd.step(RATE);
                }
                // @end
                assertEquals(10, sgd.step());
                Map<String, Tensor> state = sgd.state().tensors();
                for (Parameter parameter : parameters.all()) {
                    float[] expected = descended(parameter, first.get(parameter.name()), config, RATE, 10);
                    Tensor master = state.getOrDefault(parameter.name() + ".master", parameter.weight());
                    assertArrayEquals(expected, open.read(master), 2e-6f, parameter.name());
                    float ulp = parameter.weight().dtype() == DType.FLOAT32 ? 2e-6f : 0.02f;
                    assertArrayEquals(expected, open.read(parameter.weight()), ulp, parameter.name());
                }
            }
        }
    }

    @Test
    void givesWhatTheKernelOfTransformerEngineGives() {
        try (Parameters parameters = parameters(DType.FLOAT32);
                SGD sgd = new SGD(parameters, CONFIG)) {
            Parameter parameter = parameters.get("body.a");
            float[] first = open.read(parameter.weight());
            Tensor weight = open.tensor(DType.FLOAT32, doubles(first), first.length);
            Tensor momentum = open.tensor(DType.FLOAT32, new double[first.length], first.length);
            SgdConfig config = SgdConfig.of(RATE)
                    .withMomentum(0.9f, 0)
                    .withWeightDecay(0.1f, SgdConfig.DecayPlace.BEFORE_MOMENTUM);
            for (int step = 0; step < 5; step++) {
                gradients(parameters, step);
                sgd.step(RATE);
                Tensor gradient = open.tensor(DType.FLOAT32, gradient(parameter, step), first.length);
                try (TensorLists lists = TensorLists.of(new Tensor[][] {{gradient}, {weight}, {momentum}})) {
                    MultiTensor.sgd(
                            open.ints(0), lists, config, step == 0 ? SgdStep.FIRST : SgdStep.LATER, open.stream());
                }
            }
            assertArrayEquals(open.read(weight), open.read(parameter.weight()), 1e-6f);
        }
    }

    private static double[] doubles(float... values) {
        double[] result = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            result[i] = values[i];
        }
        return result;
    }

    @Test
    void groupsHaveTheirOwnRateAndDecay() {
        List<ParameterGroup> groups = List.of(
                ParameterGroup.of("b", parameter -> parameter.name().equals("body.b"))
                        .withRateFactor(0),
                ParameterGroup.of("c", parameter -> parameter.name().equals("head.c"))
                        .withRateFactor(3)
                        .withWeightDecay(0));
        try (Parameters parameters = parameters(DType.FLOAT32);
                SGD sgd = new SGD(parameters, CONFIG, groups)) {
            Map<String, float[]> expected = weights(parameters);
            expected.replaceAll((name, first) -> switch (name) {
                case "body.b" -> first;
                case "head.c" -> descended(parameters.get(name), first, CONFIG.withWeightDecay(0), 3 * RATE, 10);
                default -> descended(parameters.get(name), first, CONFIG, RATE, 10);
            });
            for (int step = 0; step < 10; step++) {
                gradients(parameters, step);
                sgd.step(RATE);
            }
            assertSame(expected, weights(parameters), 2e-6f);
            assertEquals(
                    "SGD(momentum=0.9, dampening=0.0, weightDecay=0.1, kind=CLASSICAL, masters=FLOAT32)\n  ParameterGroup(name=b, rateFactor=0.0)\n"
                            + "  ParameterGroup(name=c, rateFactor=3.0, weightDecay=0.0)",
                    sgd.toString());
        }
    }

    @Test
    void aStepOfGradientsThatAreNotFiniteChangesNothing() {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                SGD sgd = new SGD(parameters, CONFIG)) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            gradients(parameters, 0);
            norm.compute();
            sgd.step(RATE, norm);
            Map<String, float[]> before = weights(parameters);
            Map<String, float[]> state = new LinkedHashMap<>();
            sgd.state().tensors().forEach((name, tensor) -> state.put(name, open.read(tensor)));
            gradients(parameters, 1);
            double[] values = gradient(parameters.get("body.a"), 1);
            values[7] = Double.NaN;
            open.set(parameters.get("body.a").gradient(), values);
            norm.compute();
            sgd.step(RATE, norm);
            assertSame(before, weights(parameters), 0);
            sgd.state()
                    .tensors()
                    .forEach((name, tensor) -> assertArrayEquals(state.get(name), open.read(tensor), name));
            assertEquals(2, sgd.step());
        }
    }

    /** The norm is clipped on the device. */
    @Test
    void gradientsAreClipped() {
        try (Parameters parameters = parameters(DType.FLOAT32);
                Parameters others = parameters(DType.FLOAT32);
                SGD clipped = new SGD(parameters, CONFIG);
                SGD scaled = new SGD(others, CONFIG)) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            gradients(parameters, 0);
            gradients(others, 0);
            norm.compute();
            double length = open.read(norm.norm())[0];
            clipped.step(RATE, norm);
            scaled.step(RATE, open.tensor(DType.FLOAT32, new double[] {1 / length}, 1));
            assertSame(weights(others), weights(parameters), 1e-7f);
        }
    }

    @Test
    void aGraphStepsAtTheRateOfEachLaunch() {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                Parameters others = parameters(DType.BFLOAT16);
                SGD captured = new SGD(parameters, CONFIG);
                SGD enqueued = new SGD(others, CONFIG)) {
            gradients(parameters, 0);
            gradients(others, 0);
            captured.step(RATE);
            enqueued.step(RATE);
            gradients(parameters, 1);
            gradients(others, 1);
            try (Graph graph = open.stream().capture(() -> captured.step(RATE))) {
                for (int launch = 1; launch < 4; launch++) {
                    gradients(parameters, launch);
                    gradients(others, launch);
                    captured.rate(launch * RATE);
                    graph.launch();
                    enqueued.step(launch * RATE);
                }
                assertSame(weights(others), weights(parameters), 0);
                assertEquals(4, captured.step());
            }
        }
    }

    @Test
    void goesOnFromAFile() {
        Path file = folder.resolve("state");
        try (Parameters parameters = parameters(DType.BFLOAT16);
                Parameters others = parameters(DType.BFLOAT16);
                SGD first = new SGD(parameters, CONFIG);
                SGD second = new SGD(others, CONFIG)) {
            for (int step = 0; step < 3; step++) {
                gradients(parameters, step);
                first.step(RATE);
            }
            Safetensors.save(file, first.state(), open.stream(), Map.of());
            Safetensors.save(folder.resolve("weights"), parameters.state(), open.stream(), Map.of());
            Safetensors.load(folder.resolve("weights"), others.state(), open.stream());
            Safetensors.load(file, second.state(), open.stream());
            assertEquals(3, second.step());
            gradients(parameters, 3);
            gradients(others, 3);
            first.step(RATE);
            second.step(RATE);
            assertSame(weights(parameters), weights(others), 0);
        }
    }

    @Test
    void aSteadyStepMakesNoGarbage() {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                SGD sgd = new SGD(parameters, CONFIG)) {
            gradients(parameters, 1);
            Allocation.assertNone("step", () -> sgd.step(1e-3f));
        }
    }

    @Test
    void wrongNumbersAreRefused() {
        assertThrown(
                IllegalArgumentException.class,
                "momentum: expected a number within [0, 1), got 1.0",
                () -> CONFIG.withMomentum(1));
        assertThrown(
                IllegalArgumentException.class,
                "weightDecay: expected a number of at least 0, got -0.5",
                () -> CONFIG.withWeightDecay(-0.5f));
        try (Parameters parameters = parameters(DType.FLOAT32)) {
            SGD sgd = new SGD(parameters, CONFIG);
            assertEquals(Arrays.toString(new String[] {".master", ".momentum_buffer"}), endings(sgd));
            sgd.close();
            assertThrown(
                    IllegalStateException.class,
                    "the SGD of device 0 is closed; make another with new SGD(parameters, config)",
                    () -> sgd.step(RATE));
        }
    }

    private static String endings(Optimizer optimizer) {
        return optimizer.vectors().stream().map(StateVector::ending).toList().toString();
    }
}
