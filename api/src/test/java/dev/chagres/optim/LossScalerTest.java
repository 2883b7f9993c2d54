package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.optim.LossScaler.Config;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code LossScaler} with {@code GradientNorm} and {@code AdamW}. */
@Tag("L0")
@Tag("L1")
class LossScalerTest {
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.1f);
    private static final Config QUICK = new Config(1024, 4, 0.25f, 3);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Parameters with their optimizer. */
    private static final class Training implements AutoCloseable {
        private final Parameters parameters;
        private final LossScaler scaler;
        private final GradientNorm norm;
        private final AdamW adam;

        Training(DType dtype, Config config) {
            ModelPlan plan = new ModelPlan();
            plan.declare("matrix", Initializer.normal(1), 17, 9);
            plan.declare("vector", Initializer.normal(1), 33);
            parameters = Parameters.allocate(open.device(), plan, dtype, 3);
            scaler = new LossScaler(parameters, config);
            norm = new GradientNorm(scaler, 1);
            adam = new AdamW(parameters, ADAM);
        }

        /** Takes a step with the gradients of a number, which a backward pass has scaled; NaN spoils one of them. */
        void step(int number, double spoiled) {
            double scale = scaler.currentScale();
            parameters.completeGradients();
            for (Parameter parameter : parameters.all()) {
                double[] values = new double[(int) parameter.shape().count()];
                for (int i = 0; i < values.length; i++) {
                    values[i] = (float) Math.sin(number + 0.37 * i) * scale;
                }
                values[3] *= spoiled;
                open.set(parameter.gradient(), values);
            }
            norm.compute();
            adam.step(1e-2f, norm);
        }

        State state() {
            return State.of(parameters.state(), adam.state(), scaler.state());
        }

        Map<String, float[]> read() {
            Map<String, float[]> saved = new LinkedHashMap<>();
            State.of(parameters.state(), adam.state())
                    .tensors()
                    .forEach((name, tensor) -> saved.put(name, open.read(tensor)));
            return saved;
        }

        @Override
        public void close() {
            adam.close();
            parameters.close();
        }
    }

    private static void assertSame(Map<String, float[]> expected, Map<String, float[]> actual) {
        expected.forEach((name, values) -> assertArrayEquals(values, actual.get(name), name));
    }

    /** Powers of two cancel exactly, so that scaling changes no bit. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void scaledGradientsGiveTheSameWeights(DType dtype) {
        try (Training scaled = new Training(dtype, QUICK);
                Training plain = new Training(dtype, QUICK.withInitialScale(1).withGrowthInterval(100))) {
            for (int i = 0; i < 8; i++) {
                scaled.step(i, 1);
                plain.step(i, 1);
                assertEquals(open.read(plain.norm.norm())[0], open.read(scaled.norm.norm())[0]);
            }
            assertSame(plain.read(), scaled.read());
            assertEquals(1024 * 16, scaled.scaler.currentScale());
            assertEquals(1, plain.scaler.currentScale());
            assertEquals(8, scaled.adam.step());
        }
    }

    @ParameterizedTest
    @ValueSource(doubles = {Double.NaN, Double.POSITIVE_INFINITY, Double.NEGATIVE_INFINITY, 1e300})
    void aStepWithoutFiniteGradientsLeavesEverything(double bad) {
        try (Training spoiled = new Training(DType.FLOAT16, QUICK);
                Training plain = new Training(DType.FLOAT16, QUICK)) {
            spoiled.step(1, 1);
            Map<String, float[]> before = spoiled.read();
            spoiled.step(2, bad);
            spoiled.step(3, bad);
            assertEquals(2, spoiled.scaler.skippedSteps());
            assertEquals(1024 / 16f, spoiled.scaler.currentScale());
            assertEquals(1, spoiled.adam.step());
            assertSame(before, spoiled.read());
            spoiled.step(4, 1);
            plain.step(1, 1);
            plain.step(4, 1);
            assertSame(plain.read(), spoiled.read());
            assertEquals(2, spoiled.adam.step());
            assertEquals(4, spoiled.parameters.step(), "random numbers go on");
        }
    }

    /** A sum of squares that FP32 cannot hold, of gradients that it can. */
    @Test
    void aNormThatOverflowsIsSkippedToo() {
        try (Training training = new Training(DType.FLOAT32, QUICK)) {
            Map<String, float[]> before = training.read();
            training.step(1, 1e25);
            assertSame(before, training.read());
            assertEquals(1, training.scaler.skippedSteps());
            assertEquals(0, training.adam.step());
        }
    }

    @Test
    void savedInMidRunItGoesOnWithTheSameBits() {
        Map<String, float[]> saved = new LinkedHashMap<>();
        Map<String, Long> numbers = new LinkedHashMap<>();
        try (Training training = new Training(DType.FLOAT16, QUICK);
                Training fresh = new Training(DType.FLOAT16, QUICK.withInitialScale(8))) {
            training.step(1, 1);
            training.step(2, Double.NaN);
            training.step(3, 1);
            training.step(4, 1);
            State state = training.state();
            state.tensors().forEach((name, tensor) -> saved.put(name, numbers(tensor)));
            state.numbers()
                    .forEach((name, number) -> numbers.put(name, number.reader().getAsLong()));
            assertEquals(3, numbers.get("optimizer.step"));
            assertArrayEquals(new float[] {256}, saved.get("loss_scaler.scale"));
            assertArrayEquals(new float[] {2}, saved.get("loss_scaler.growth_tracker"));
            assertArrayEquals(new float[] {1}, saved.get("loss_scaler.skipped_steps"));
            fresh.step(9, 1);
            fresh.state().tensors().forEach((name, tensor) -> write(tensor, saved.get(name)));
            fresh.state().numbers().forEach((name, number) -> number.writer().accept(numbers.get(name)));
            fresh.state().loaded();
            for (int i = 5; i < 8; i++) {
                training.step(i, 1);
                fresh.step(i, 1);
            }
            assertSame(training.read(), fresh.read());
            assertEquals(1024, fresh.scaler.currentScale());
            assertEquals(6, fresh.adam.step());
            assertEquals(1, fresh.scaler.skippedSteps());
        }
    }

    private static float[] numbers(Tensor tensor) {
        if (tensor.dtype() != DType.INT32) {
            return open.read(tensor);
        }
        int[] ints = tensor.toInts(open.stream());
        float[] values = new float[ints.length];
        for (int i = 0; i < ints.length; i++) {
            values[i] = ints[i];
        }
        return values;
    }

    private static void write(Tensor tensor, float[] values) {
        if (tensor.dtype() == DType.INT32) {
            tensor.set(open.stream(), (int) values[0]);
        } else {
            tensor.set(open.stream(), values);
        }
    }

    /** Steps with and without a scaler may follow each other: both go on from the same count. */
    @Test
    void stepsWithoutAScalerCountOn() {
        try (Training training = new Training(DType.FLOAT32, QUICK)) {
            training.step(1, 1);
            training.step(2, Double.NaN);
            training.adam.step(1e-2f);
            training.step(3, 1);
            assertEquals(3, training.adam.step());
        }
    }

    @Test
    void aSteadyStepMakesNoGarbage() {
        try (Training training = new Training(DType.FLOAT16, Config.standard())) {
            training.step(1, 1);
            Allocation.assertNone("scaled step", () -> {
                training.norm.compute();
                training.adam.step(1e-3f, training.norm);
            });
        }
    }

    @Test
    void config() {
        assertEquals(new Config(65536, 2, 0.5f, 2000), Config.standard());
        Config other = Config.standard()
                .withInitialScale(8)
                .withGrowthFactor(3)
                .withBackoffFactor(0.1f)
                .withGrowthInterval(7);
        assertEquals(new Config(8, 3, 0.1f, 7), other);
        assertNotEquals(other, Config.standard());
        refused("initialScale: expected a positive number, got 0.0", 0, 2, 0.5f, 1);
        refused("initialScale: expected a positive number, got NaN", Float.NaN, 2, 0.5f, 1);
        refused("initialScale: expected a positive number, got Infinity", Float.POSITIVE_INFINITY, 2, 0.5f, 1);
        refused("growthFactor: expected a number above 1, got 1.0", 1, 1, 0.5f, 1);
        refused("backoffFactor: expected a number above 0 and below 1, got 0.0", 1, 2, 0, 1);
        refused("backoffFactor: expected a number above 0 and below 1, got 1.0", 1, 2, 1, 1);
        refused("growthInterval: expected at least 1, got 0", 1, 2, 0.5f, 0);
        try (Training training = new Training(DType.FLOAT32, QUICK)) {
            assertEquals(QUICK, training.scaler.config());
            assertEquals(1024, open.read(training.scaler.scale())[0]);
        }
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.ones(), 2);
        Parameters closed = Parameters.allocate(open.device(), plan, DType.FLOAT32, 1);
        closed.close();
        assertThrown(
                IllegalStateException.class,
                "the parameters are closed; make others with Parameters.allocate",
                () -> new LossScaler(closed, Config.standard()));
    }

    private static void refused(String text, float initial, float growth, float backoff, int interval) {
        assertThrown(IllegalArgumentException.class, text, () -> new Config(initial, growth, backoff, interval));
    }
}
