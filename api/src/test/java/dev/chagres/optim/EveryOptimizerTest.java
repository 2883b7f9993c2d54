package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.io.Safetensors;
import dev.chagres.optim.AdamW.Masters;
import dev.chagres.optim.SGD.Momentum;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
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

/** What each optimizer does beside its formula: groups, clipping, skipped steps, extreme gradients, graphs, files, no garbage, smaller losses. */
@Tag("L0")
@Tag("L1")
class EveryOptimizerTest {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @TempDir
    private Path folder;

    private enum Kind {
        ADAMW(AdamW.Config.standard(), 0.1f),
        ADAMW_8_BIT(AdamW.Config.standard().withMomentDType(DType.BYTE), 0.1f),
        SGD_DAMPENED(new SGD.Config(0.9f, 0.1f).withDampening(0.3f), 0.03f),
        SGD_NESTEROV(new SGD.Config(0.9f, 0.1f).withKind(Momentum.NESTEROV), 0.01f),
        LION(Lion.Config.standard().withWeightDecay(0.1f), 0.06f),
        LION_BFLOAT16(Lion.Config.standard().withMomentDType(DType.BFLOAT16), 0.06f),
        LION_8_BIT(Lion.Config.standard().withMomentDType(DType.BYTE), 0.06f),
        ADAFACTOR(Adafactor.Config.standard(), 0.2f),
        ADAFACTOR_WITH_MEAN(Adafactor.Config.standard().withBeta1(0.5f), 0.2f),
        MUON(Muon.Config.standard(), 0.1f),
        SCHEDULE_FREE(ScheduleFreeAdamW.Config.standard().withWeightDecay(0.01f), 0.3f),
        AVERAGED(AdamW.Config.standard().withAverage(0.5f), 0.1f),
        OFFLOADED(new OffloadedConfig(AdamW.Config.standard(), 1024), 0.1f);

        private final OptimizerConfig config;
        private final float rate;

        Kind(OptimizerConfig config, float rate) {
            this.config = config;
            this.rate = rate;
        }

        private Parameters parameters(DType dtype) {
            ModelPlan plan = new ModelPlan();
            plan.alignParameters(config.alignment());
            plan.group("body").declare("a", Initializer.normal(1), 17, 90);
            plan.group("body").declare("b", Initializer.normal(1), 33);
            plan.group("head").declare("c", Initializer.normal(1), 5, 8);
            plan.group("head").declareAs(DType.FLOAT32, "d", Initializer.normal(1), 4, 3);
            plan.group("head").declare("one", Initializer.normal(1), 1);
            return Parameters.allocate(open.device(), plan, dtype, 3);
        }

        private Optimizer on(Parameters parameters) {
            return config.make(parameters, List.of());
        }
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

    private static Map<String, float[]> read(Map<String, Tensor> tensors) {
        Map<String, float[]> result = new LinkedHashMap<>();
        tensors.forEach((name, tensor) -> result.put(name, numbers(tensor)));
        return result;
    }

    private static float[] numbers(Tensor tensor) {
        if (tensor.dtype() != DType.BYTE) {
            return open.read(tensor);
        }
        byte[] bytes = tensor.toBytes(open.stream());
        float[] numbers = new float[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            numbers[i] = bytes[i];
        }
        return numbers;
    }

    private static Map<String, float[]> all(Optimizer optimizer) {
        Map<String, float[]> result = read(optimizer.parameters().state().tensors());
        result.putAll(read(optimizer.state().tensors()));
        return result;
    }

    private static void assertSame(Map<String, float[]> expected, Map<String, float[]> actual) {
        assertEquals(expected.keySet(), actual.keySet());
        expected.forEach((name, values) -> assertArrayEquals(values, actual.get(name), name));
    }

    @Test
    void everyOptimizerIsHere() {
        List<Class<?>> missing = Arrays.stream(OptimizerConfig.class.getPermittedSubclasses())
                .filter(config -> Arrays.stream(Kind.values()).noneMatch(kind -> config.isInstance(kind.config)))
                .toList();
        assertEquals(List.of(), missing, "settings without a value of Kind");
    }

    /** Half the sum of squares, whose gradients are the weights; of schedule-free optimizers that of the averages. */
    @ParameterizedTest
    @EnumSource
    void aLossFalls(Kind kind) {
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16)) {
            try (Parameters parameters = kind.parameters(dtype);
                    Optimizer optimizer = kind.on(parameters)) {
                double first = loss(parameters);
                for (int step = 0; step < 60; step++) {
                    parameters.completeGradients();
                    for (Parameter one : parameters.all()) {
                        one.gradient().set(open.stream(), open.read(one.weight()));
                    }
                    optimizer.step(kind.rate);
                }
                optimizer.beginEvaluation();
                double last = loss(parameters);
                assertTrue(last < 0.1 * first, kind + " " + dtype + ": " + first + " to " + last);
            }
        }
    }

    private static double loss(Parameters parameters) {
        double sum = 0;
        for (Parameter one : parameters.all()) {
            for (float value : open.read(one.weight())) {
                sum += 0.5 * value * value;
            }
        }
        return sum;
    }

    @ParameterizedTest
    @EnumSource
    void aStepOfGradientsThatAreNotFiniteChangesNothing(Kind kind) {
        try (Parameters parameters = kind.parameters(DType.BFLOAT16);
                Optimizer optimizer = kind.on(parameters)) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            gradients(parameters, 0);
            norm.compute();
            optimizer.step(kind.rate, norm);
            Map<String, float[]> before = all(optimizer);
            for (double wrong : new double[] {Double.NaN, Double.NEGATIVE_INFINITY}) {
                gradients(parameters, 1);
                double[] values = gradient(parameters.get("body.a"), 1);
                values[7] = wrong;
                open.set(parameters.get("body.a").gradient(), values);
                norm.compute();
                optimizer.step(kind.rate, norm);
                assertSame(before, all(optimizer));
            }
            assertEquals(3, optimizer.step());
        }
    }

    @ParameterizedTest
    @EnumSource
    void weightsStayFiniteAfterGradientsOfZeroAndOfGreatSize(Kind kind) {
        try (Parameters parameters = kind.parameters(DType.FLOAT32);
                Optimizer optimizer = kind.on(parameters)) {
            for (double size : new double[] {0, 1e38, 0, 1e-38, 1}) {
                parameters.completeGradients();
                for (Parameter one : parameters.all()) {
                    double[] values = gradient(one, 1);
                    open.set(
                            one.gradient(),
                            Arrays.stream(values).map(value -> size * value).toArray());
                }
                GradientNorm norm = new GradientNorm(parameters, 1);
                norm.compute(); // A norm of 1e38 overflows: the step is skipped.
                optimizer.step(kind.rate, norm);
            }
            for (Parameter one : parameters.all()) {
                for (float value : open.read(one.weight())) {
                    assertTrue(Float.isFinite(value), one.name() + ": " + value);
                }
            }
        }
    }

    @ParameterizedTest
    @EnumSource(names = "OFFLOADED", mode = EnumSource.Mode.EXCLUDE)
    void aGraphStepsAtTheRateOfEachLaunch(Kind kind) {
        try (Parameters parameters = kind.parameters(DType.BFLOAT16);
                Parameters others = kind.parameters(DType.BFLOAT16);
                Optimizer captured = kind.on(parameters);
                Optimizer enqueued = kind.on(others)) {
            gradients(parameters, 0);
            gradients(others, 0);
            captured.step(kind.rate);
            enqueued.step(kind.rate);
            gradients(parameters, 1);
            gradients(others, 1);
            try (Graph graph = open.stream().capture(() -> captured.step(kind.rate))) {
                for (int launch = 1; launch < 4; launch++) {
                    gradients(parameters, launch);
                    gradients(others, launch);
                    captured.rate(launch * kind.rate);
                    graph.launch();
                    enqueued.step(launch * kind.rate);
                }
                assertSame(all(enqueued), all(captured));
                assertEquals(4, captured.step());
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void goesOnFromAFile(Kind kind) {
        Path file = folder.resolve("state");
        try (Parameters parameters = kind.parameters(DType.BFLOAT16);
                Parameters others = kind.parameters(DType.BFLOAT16);
                Optimizer first = kind.on(parameters);
                Optimizer second = kind.on(others)) {
            for (int step = 0; step < 3; step++) {
                gradients(parameters, step);
                first.step(kind.rate);
            }
            Safetensors.save(file, first.state(), open.stream(), Map.of());
            Safetensors.save(folder.resolve("weights"), parameters.state(), open.stream(), Map.of());
            Safetensors.load(folder.resolve("weights"), others.state(), open.stream());
            Safetensors.load(file, second.state(), open.stream());
            assertEquals(3, second.step());
            gradients(parameters, 3);
            gradients(others, 3);
            first.step(kind.rate);
            second.step(kind.rate);
            assertSame(all(first), all(second));
        }
    }

    /** The weights of the groups move as those of an optimizer with their rate and decay alone would. */
    @ParameterizedTest
    @EnumSource
    void groupsHaveTheirOwnRate(Kind kind) {
        List<ParameterGroup> groups = List.of(
                ParameterGroup.of("b", one -> one.name().equals("body.b")).withRateFactor(0),
                ParameterGroup.of("a", one -> one.name().equals("body.a")).withRateFactor(2));
        try (Parameters parameters = kind.parameters(DType.FLOAT32);
                Parameters faster = kind.parameters(DType.FLOAT32);
                Optimizer grouped = kind.config.make(parameters, groups);
                Optimizer alone = kind.on(faster)) {
            float[] still = open.read(parameters.get("body.b").weight());
            for (int step = 0; step < 4; step++) {
                gradients(parameters, step);
                gradients(faster, step);
                grouped.step(kind.rate);
                alone.step(2 * kind.rate);
            }
            assertArrayEquals(
                    open.read(faster.get("body.a").weight()),
                    open.read(parameters.get("body.a").weight()),
                    1e-6f);
            assertArrayEquals(
                    still, open.read(parameters.get("body.b").weight()), kind == Kind.SCHEDULE_FREE ? 1e-6f : 0);
        }
    }

    @ParameterizedTest
    @EnumSource
    void aLossScalerSkipsAndCounts(Kind kind) {
        try (Parameters parameters = kind.parameters(DType.FLOAT16);
                Optimizer optimizer = kind.on(parameters)) {
            LossScaler scaler = new LossScaler(parameters, LossScaler.Config.standard());
            GradientNorm norm = new GradientNorm(scaler, 1);
            for (int step = 0; step < 3; step++) {
                gradients(parameters, step);
                if (step == 1) {
                    double[] values = gradient(parameters.get("body.a"), 1);
                    values[7] = Double.POSITIVE_INFINITY;
                    open.set(parameters.get("body.a").gradient(), values);
                }
                norm.compute();
                optimizer.step(kind.rate, norm);
            }
            assertEquals(2, optimizer.step());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSteadyStepMakesNoGarbage(Kind kind) {
        try (Parameters parameters = kind.parameters(DType.BFLOAT16);
                Optimizer optimizer = kind.on(parameters)) {
            gradients(parameters, 1);
            Allocation.assertNone("step", () -> optimizer.step(1e-3f));
        }
    }

    /** Remainders keep the FP32 weights that FLOAT32 masters are. */
    @ParameterizedTest
    @EnumSource
    void remaindersAreMasters(Kind kind) {
        try (Parameters parameters = kind.parameters(DType.BFLOAT16);
                Parameters others = kind.parameters(DType.BFLOAT16);
                Optimizer masters = kind.on(parameters);
                Optimizer remainders =
                        kind.config.withMasters(Masters.REMAINDER).make(others, List.of())) {
            for (int step = 0; step < 4; step++) {
                gradients(parameters, step);
                gradients(others, step);
                masters.step(kind.rate);
                remainders.step(kind.rate);
            }
            for (Parameter one : parameters.all()) {
                float[] expected = open.read(one.weight());
                float[] actual = open.read(others.get(one.name()).weight());
                for (int i = 0; i < expected.length; i++) {
                    assertEquals(expected[i], actual[i], Math.abs(expected[i]) / 128, one.name());
                }
            }
        }
    }

    /** States of 8 bits and a scale for each 256 of them. */
    @Test
    void statesOfEightBitsTakeABytePerWeight() {
        ModelPlan plan = new ModelPlan();
        plan.alignParameters(256);
        plan.declare("a", Initializer.normal(1), 256, 256);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3);
                Optimizer adam = Kind.ADAMW_8_BIT.on(parameters);
                Optimizer lion = Kind.LION_8_BIT.on(parameters)) {
            assertEquals(2 + 2 * 4 / 256.0, bytes(adam) / plan.count(), 1e-3);
            assertEquals(1 + 4 / 256.0, bytes(lion) / plan.count(), 1e-3);
        }
    }

    private static double bytes(Optimizer optimizer) {
        return optimizer.vectors().stream()
                .mapToDouble(vector -> vector.elements().byteSize())
                .sum();
    }

    @Test
    void statesOfEightBitsNeedAlignedParameters() {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 4, 4);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "parameters: expected each to begin at a multiple of 256 elements, whose states of eight bits share a scale,"
                            + " got 16; call plan.alignParameters(256) before Parameters.allocate",
                    () -> Kind.LION_8_BIT.on(parameters));
        }
        assertThrown(
                IllegalArgumentException.class,
                "elements: expected a power of two from 16 on, got 24",
                () -> plan.alignParameters(24));
    }

    @Test
    void wrongNumbersAreRefused() {
        assertThrown(
                IllegalArgumentException.class,
                "dampening: expected a number within [0, 1), got 1.0",
                () -> SGD.Config.standard().withDampening(1));
        assertThrown(
                IllegalArgumentException.class,
                "kind: expected CLASSICAL without momentum or with dampening, got NESTEROV with momentum 0.0 and dampening 0.0",
                () -> SGD.Config.standard().withKind(Momentum.NESTEROV));
        assertThrown(
                IllegalArgumentException.class,
                "beta1, beta2: expected numbers within [0, 1), got 1.0 and 0.0",
                () -> Lion.Config.standard().withBetas(1, 0));
        assertThrown(
                IllegalArgumentException.class,
                "momentDType: expected FLOAT32, BFLOAT16 or BYTE, got FLOAT16",
                () -> Lion.Config.standard().withMomentDType(DType.FLOAT16));
        assertThrown(
                IllegalArgumentException.class,
                "weightDecay: expected a number of at least 0, got -1.0",
                () -> Lion.Config.standard().withWeightDecay(-1));
        assertThrown(
                IllegalArgumentException.class,
                "power, ratePower: expected numbers of at least 0, got -1.0 and 2.0",
                () -> ScheduleFreeAdamW.Config.standard().withPowers(-1, 2));
        assertThrown(
                IllegalArgumentException.class,
                "epsilon: expected a positive number, got 0.0",
                () -> ScheduleFreeAdamW.Config.standard().withEpsilon(0));
    }
}
