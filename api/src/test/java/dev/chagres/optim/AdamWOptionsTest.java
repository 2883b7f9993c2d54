package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.io.Safetensors;
import dev.chagres.io.SafetensorsException;
import dev.chagres.optim.AdamW.Config;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.MultiTensorAdam;
import dev.chagres.te.TensorLists;
import dev.chagres.witness.AdamWWitness;
import dev.chagres.witness.Rounding;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Moments, masters, decays and groups of {@code AdamW}. */
@Tag("L0")
@Tag("L1")
class AdamWOptionsTest {
    private static final Config STANDARD = new Config(0.9f, 0.98f, 1e-8f, 0.1f);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @TempDir
    private Path folder;

    @Test
    void numbersByName() {
        Config one = STANDARD.withBetas(0.8f, 0.9f).withEpsilon(1e-6f).withWeightDecay(0.2f);
        assertEquals(new Config(0.8f, 0.9f, 1e-6f, 0.2f), one);
        assertThrown(
                IllegalArgumentException.class,
                "beta1, beta2: expected numbers within [0, 1), got 0.9 and 1.0",
                () -> STANDARD.withBetas(0.9f, 1f));
    }

    private static Parameters parameters(DType dtype) {
        return parameters(dtype, STANDARD);
    }

    private static Parameters parameters(DType dtype, AdamW.Config config) {
        ModelPlan plan = new ModelPlan();
        plan.alignParameters(config.alignment());
        plan.group("body").declare("a", Initializer.normal(1), 17, 9);
        plan.group("body").declare("b", Initializer.normal(1), 33);
        plan.group("body").declare("c", Initializer.normal(1), 5, 8);
        plan.group("head").declare("d", Initializer.normal(1), 21);
        plan.group("head").declareAs(DType.FLOAT32, "e", Initializer.normal(1), 4, 3);
        return Parameters.allocate(open.device(), plan, dtype, 3);
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        for (Parameter parameter : parameters.all()) {
            open.set(parameter.gradient(), gradient(parameter, step));
        }
    }

    private static double[] gradient(Parameter parameter, int step) {
        double[] values = new double[(int) parameter.shape().count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(step + 0.37 * i + parameter.name().hashCode() % 7);
        }
        return values;
    }

    private static Map<String, float[]> weights(Parameters parameters) {
        Map<String, float[]> weights = new LinkedHashMap<>();
        parameters.all().forEach(parameter -> weights.put(parameter.name(), open.read(parameter.weight())));
        return weights;
    }

    private static void run(Parameters parameters, AdamW adam, int from, int to) {
        for (int step = from; step < to; step++) {
            gradients(parameters, step);
            adam.step(1e-2f);
        }
    }

    private static Map<String, float[]> after(DType dtype, Config config, List<ParameterGroup> groups) {
        try (Parameters parameters = parameters(dtype);
                AdamW adam = new AdamW(parameters, config, groups)) {
            run(parameters, adam, 0, 20);
            return weights(parameters);
        }
    }

    private static void assertNear(Map<String, float[]> expected, Map<String, float[]> actual, double bound) {
        expected.forEach((name, values) -> assertArrayEquals(values, actual.get(name), (float) bound, name));
    }

    @ParameterizedTest
    @EnumSource(BiasCorrection.class)
    void givesWhatTheKernelOfTransformerEngineGives(BiasCorrection correction) {
        try (Parameters parameters = parameters(DType.FLOAT32);
                AdamW adam = new AdamW(parameters, STANDARD.withBiasCorrection(correction))) {
            Parameter parameter = parameters.get("body.a");
            double[] weights = doubles(open.read(parameter.weight()));
            double[] decay = new double[weights.length];
            Arrays.fill(decay, STANDARD.weightDecay());
            AdamWWitness witness =
                    new AdamWWitness(STANDARD.beta1(), STANDARD.beta2(), STANDARD.epsilon(), decay, weights.clone());
            if (correction == BiasCorrection.NO) {
                witness.withoutBiasCorrection();
            }
            double[] expected = weights;
            Tensor weight = open.tensor(DType.FLOAT32, weights, weights.length);
            Tensor mean = open.tensor(DType.FLOAT32, new double[weights.length], weights.length);
            Tensor square = open.tensor(DType.FLOAT32, new double[weights.length], weights.length);
            for (int step = 1; step <= 5; step++) {
                gradients(parameters, step);
                adam.step(1e-2f);
                Tensor gradient = open.tensor(DType.FLOAT32, gradient(parameter, step), weights.length);
                try (TensorLists lists = TensorLists.of(new Tensor[][] {{gradient}, {weight}, {mean}, {square}})) {
                    new MultiTensorAdam(
                                    STANDARD.beta1(),
                                    STANDARD.beta2(),
                                    STANDARD.epsilon(),
                                    WeightDecay.DECOUPLED,
                                    correction,
                                    STANDARD.weightDecay())
                            .adamCapturable(
                                    open.ints(0),
                                    lists,
                                    open.tensor(DType.FLOAT32, new double[] {1e-2f}, 1),
                                    open.ints(step),
                                    open.tensor(DType.FLOAT32, new double[] {1}, 1),
                                    open.stream());
                }
                expected = witness.step(1e-2f, gradient(parameter, step), 1);
            }
            assertArrayEquals(open.read(weight), open.read(parameter.weight()), 2e-6f);
            Tolerance tolerance = new Tolerance("Adam, bias correction " + correction, 2e-6, 2e-5);
            open.assertClose("weight", expected, parameter.weight(), tolerance);
        }
    }

    /** Remainders lose nothing: joined with the weights, they are the masters. */
    @Test
    void remaindersAndWeightsAreTheMasters() {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                Parameters others = parameters(DType.BFLOAT16);
                AdamW adam = new AdamW(parameters, STANDARD.withMasters(Masters.REMAINDER));
                AdamW plain = new AdamW(others, STANDARD)) {
            run(parameters, adam, 0, 20);
            run(others, plain, 0, 20);
            for (Parameter parameter : parameters.all()) {
                Tensor remainder = adam.state().tensors().get(parameter.name() + ".remainder");
                if (parameter.weight().dtype() == DType.FLOAT32) {
                    assertEquals(null, remainder);
                    continue;
                }
                byte[] low = Objects.requireNonNull(remainder).toBytes(open.stream());
                float[] weight = open.read(parameter.weight());
                float[] joined = new float[weight.length];
                for (int i = 0; i < joined.length; i++) {
                    int half = low[2 * i] & 0xff | (low[2 * i + 1] & 0xff) << 8;
                    int upper = (Float.floatToRawIntBits(weight[i]) >>> 16) - (half >> 15);
                    joined[i] = Float.intBitsToFloat(upper << 16 | half);
                }
                Tensor master = Objects.requireNonNull(plain.state().tensors().get(parameter.name() + ".master"));
                assertArrayEquals(open.read(master), joined, parameter.name());
                assertEquals(master.byteSize(), 2 * remainder.byteSize());
            }
        }
    }

    /** Each step rounds the moments; the witness does so too. */
    @ParameterizedTest
    @EnumSource(Masters.class)
    void momentsOfBfloat16(Masters masters) {
        Config config = STANDARD.withMomentDType(DType.BFLOAT16).withMasters(masters);
        try (Parameters parameters = parameters(DType.BFLOAT16);
                AdamW adam = new AdamW(parameters, config)) {
            Parameter parameter = parameters.get("body.a");
            double[] weights = doubles(open.read(parameter.weight()));
            double[] mean = new double[weights.length];
            double[] square = new double[weights.length];
            for (int step = 1; step <= 10; step++) {
                double[] gradient = gradient(parameter, step);
                gradients(parameters, step);
                adam.step(1e-2f);
                for (int i = 0; i < weights.length; i++) {
                    mean[i] = 0.9f * mean[i] + (1 - (double) 0.9f) * gradient[i];
                    square[i] = 0.98f * square[i] + (1 - (double) 0.98f) * gradient[i] * gradient[i];
                    double size = Math.sqrt(square[i] / (1 - Math.pow(0.98f, step))) + 1e-8f;
                    weights[i] -= 1e-2f * (mean[i] / (1 - Math.pow(0.9f, step)) / size + 0.1f * weights[i]);
                }
                mean = Rounding.round(mean, DType.BFLOAT16);
                square = Rounding.round(square, DType.BFLOAT16);
            }
            Tensor kept = Objects.requireNonNull(adam.state().tensors().get("body.a.exp_avg"));
            assertEquals(DType.BFLOAT16, kept.dtype());
            // A moment that FP32 rounds to the other neighbour differs in its last bit, and so a little in what
            // follows.
            Tolerance tolerance = new Tolerance("Adam, moments of BFLOAT16", 4e-3, 4e-2);
            open.assertClose("mean", mean, kept, tolerance);
            open.assertClose("weight", weights, parameter.weight(), tolerance);
        }
    }

    private static double[] doubles(float[] values) {
        double[] doubles = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            doubles[i] = values[i];
        }
        return doubles;
    }

    @Test
    void decayIntoTheGradient() {
        Config config = STANDARD.withDecayMode(WeightDecay.L2);
        try (Parameters parameters = parameters(DType.FLOAT32);
                AdamW adam = new AdamW(parameters, config)) {
            Parameter parameter = parameters.get("body.c");
            double[] weights = doubles(open.read(parameter.weight()));
            AdamWWitness witness = new AdamWWitness(0.9f, 0.98f, 1e-8f, new double[weights.length], weights);
            for (int step = 0; step < 10; step++) {
                gradients(parameters, step);
                double[] gradient = gradient(parameter, step);
                for (int i = 0; i < gradient.length; i++) {
                    gradient[i] += 0.1f * weights[i];
                }
                adam.step(1e-2f);
                weights = witness.step(1e-2f, gradient, 1);
            }
            open.assertClose("weight", weights, parameter.weight(), new Tolerance("Adam, L2", 2e-6, 2e-5));
        }
    }

    @Test
    void groupsHaveTheirOwnRateAndDecay() {
        List<ParameterGroup> groups = List.of(
                ParameterGroup.of("still", p -> p.name().equals("body.b")).withRateFactor(0),
                ParameterGroup.of("slow", p -> p.name().startsWith("head")).withRateFactor(0.5f),
                ParameterGroup.of("decayed", p -> p.name().equals("body.a")).withWeightDecay(0.7f));
        try (Parameters parameters = parameters(DType.BFLOAT16);
                AdamW adam = new AdamW(parameters, STANDARD, groups)) {
            Map<String, float[]> before = weights(parameters);
            gradients(parameters, 1);
            adam.step(0.5f);
            double[] rates = {0.5, 0, 0.5, 0.25, 0.25};
            double[] decays = {0.7, 0, 0.1, 0, 0.1};
            for (int p = 0; p < rates.length; p++) {
                Parameter parameter = parameters.all().get(p);
                float[] first = before.get(parameter.name());
                float[] now = open.read(parameter.weight());
                double[] gradient = gradient(parameter, 1);
                for (int i = 0; i < first.length; i++) {
                    double size = Math.abs(gradient[i]) + 1e-8;
                    double expected = first[i] - rates[p] * (gradient[i] / size + decays[p] * first[i]);
                    assertEquals(expected, now[i], 5e-3 * (1 + Math.abs(expected)), parameter.name());
                }
            }
        }
    }

    /** Groups that change nothing cut the ranges, and leave every bit. */
    @Test
    void groupsThatChangeNothing() {
        List<ParameterGroup> groups =
                List.of(ParameterGroup.of("c", p -> p.name().equals("body.c")), ParameterGroup.of("all", p -> true));
        assertNear(after(DType.BFLOAT16, STANDARD, List.of()), after(DType.BFLOAT16, STANDARD, groups), 0);
    }

    static List<Config> configs() {
        return List.of(
                STANDARD,
                STANDARD.withMomentDType(DType.BFLOAT16),
                STANDARD.withMasters(Masters.REMAINDER),
                STANDARD.withMasters(Masters.REMAINDER).withMomentDType(DType.BFLOAT16));
    }

    @ParameterizedTest
    @MethodSource("configs")
    void loadedInMidRunItGoesOnWithTheSameBits(Config config) {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                Parameters others = parameters(DType.BFLOAT16);
                AdamW adam = new AdamW(parameters, config);
                AdamW fresh = new AdamW(others, config)) {
            run(parameters, adam, 0, 5);
            run(others, fresh, 7, 9);
            State from = State.of(parameters.state(), adam.state());
            State to = State.of(others.state(), fresh.state());
            from.tensors().forEach((name, tensor) -> copy(tensor, to.tensors().get(name)));
            from.numbers()
                    .forEach((name, number) -> to.numbers()
                            .get(name)
                            .writer()
                            .accept(number.reader().getAsLong()));
            to.loaded();
            run(parameters, adam, 5, 15);
            run(others, fresh, 5, 15);
            assertNear(weights(parameters), weights(others), 0);
            assertEquals(15, fresh.step());
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "BYTE"})
    void aNegativeSquareOrScaleIsRefusedBeforeAnythingIsLoaded(DType dtype) {
        AdamW.Config config = STANDARD.withMomentDType(dtype);
        try (Parameters parameters = parameters(DType.BFLOAT16, config);
                AdamW adam = new AdamW(parameters, config)) {
            run(parameters, adam, 0, 3);
            boolean isCoded = dtype == DType.BYTE;
            String name = isCoded ? "body.a.exp_avg_sq_absmax" : "body.a.exp_avg_sq";
            Tensor square = Objects.requireNonNull(adam.state().tensors().get(name));
            Path file = folder.resolve("state");
            Safetensors.save(file, adam.state(), open.stream(), Map.of());
            Safetensors.load(file, adam.state(), open.stream());
            float[] good = open.read(square);
            float last = isCoded ? Float.POSITIVE_INFINITY : Float.NEGATIVE_INFINITY;
            for (float wrong : new float[] {-1, Float.NaN, last}) {
                float[] bad = good.clone();
                bad[good.length - 1] = wrong;
                square.set(open.stream(), bad);
                Safetensors.save(file, adam.state(), open.stream(), Map.of());
                square.set(open.stream(), good);
                assertThrown(
                        SafetensorsException.class,
                        file + ": tensor \"" + name + "\": expected " + (isCoded ? "finite " : "")
                                + "numbers from 0 on, got " + wrong + " at element " + (good.length - 1),
                        () -> Safetensors.load(file, adam.state(), open.stream()));
                assertArrayEquals(good, open.read(square));
            }
        }
    }

    private static void copy(Tensor from, Tensor to) {
        assertEquals(from.shape(), to.shape());
        to.copyFrom(open.stream(), from);
    }

    @ParameterizedTest
    @MethodSource("configs")
    void weightsWrittenFromOutsideAreTaken(Config config) {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                AdamW adam = new AdamW(parameters, config)) {
            run(parameters, adam, 0, 3);
            parameters
                    .all()
                    .forEach(parameter -> open.set(
                            parameter.weight(),
                            new double[(int) parameter.shape().count()]));
            parameters.changed();
            gradients(parameters, 4);
            adam.step(0);
            weights(parameters).forEach((name, values) -> assertArrayEquals(new float[values.length], values, name));
        }
    }

    @ParameterizedTest
    @MethodSource("configs")
    void aSteadyStepMakesNoGarbage(Config config) {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                AdamW adam = new AdamW(
                        parameters,
                        config,
                        List.of(ParameterGroup.of("c", p -> p.name().equals("body.c"))))) {
            gradients(parameters, 1);
            Allocation.assertNone("step", () -> adam.step(1e-3f));
        }
    }

    @Test
    void saysWhichKernelsRun() {
        try (Parameters parameters = parameters(DType.BFLOAT16);
                AdamW plain = new AdamW(parameters, STANDARD);
                AdamW small = new AdamW(parameters, STANDARD.withMasters(Masters.REMAINDER))) {
            assertTrue(
                    plain.explain()
                            .startsWith("ops_adam_ranges, 4 ranges in 2 calls: moments of FLOAT32, masters FLOAT32"),
                    plain.explain());
            assertTrue(
                    small.explain()
                            .startsWith(
                                    "ops_adam_ranges, 4 ranges in 2 calls: moments of FLOAT32, masters REMAINDER, weights in the"
                                            + " same kernel. Not TE's:"),
                    small.explain());
        }
    }

    @Test
    void refusals() {
        assertThrown(
                IllegalArgumentException.class,
                "momentDType: expected FLOAT32, BFLOAT16 or BYTE, got FLOAT16",
                () -> STANDARD.withMomentDType(DType.FLOAT16));
        assertThrown(
                IllegalArgumentException.class,
                "rateFactor: expected a number of at least 0, got -1.0",
                () -> ParameterGroup.of("x", p -> true).withRateFactor(-1));
        assertThrown(
                IllegalArgumentException.class,
                "weightDecay: expected a number of at least 0, got NaN",
                () -> ParameterGroup.of("x", p -> true).withWeightDecay(Float.NaN));
        try (Parameters parameters = parameters(DType.FLOAT16)) {
            assertThrown(
                    NullPointerException.class,
                    "groups: expected a value, got null",
                    () -> new AdamW(parameters, STANDARD, null));
            assertThrown(
                    IllegalArgumentException.class,
                    "masters: expected FLOAT32 for weights of FLOAT16, got REMAINDER, which BFLOAT16 weights can have",
                    () -> new AdamW(parameters, STANDARD.withMasters(Masters.REMAINDER)));
            assertThrown(
                    IllegalArgumentException.class,
                    "groups: expected trained parameters in group none that no group before it has, got none",
                    () -> new AdamW(
                            parameters,
                            STANDARD,
                            List.of(ParameterGroup.of("all", p -> true), ParameterGroup.of("none", p -> true))));
        }
    }
}
