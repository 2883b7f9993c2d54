package dev.chagres.optim;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.ops.AdafactorStep.Rate;
import dev.chagres.ops.AdafactorStep.Scale;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.OptimizerStep.Method;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.optim.SGD.Momentum;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of optimizers against PyTorch's and those of published formulas, and the codes of eight bits: {@code make_optimizers.py} has made them. */
@Tag("L0")
@Tag("L1")
class OptimizerVectorsTest {
    private static final float RATE = 0.01f;
    private static final int STEPS = 5;
    private static final Map<String, double[]> STORED = stored();

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Map<String, double[]> stored() {
        Map<String, double[]> lines = new HashMap<>();
        try (BufferedReader reader = new BufferedReader(new InputStreamReader(
                Objects.requireNonNull(OptimizerVectorsTest.class.getResourceAsStream("/vectors/optimizers.txt")),
                StandardCharsets.UTF_8))) {
            reader.lines().forEach(line -> {
                String[] words = line.split(" ", -1);
                lines.put(
                        words[0],
                        Arrays.stream(words)
                                .skip(1)
                                .mapToDouble(Double::parseDouble)
                                .toArray());
            });
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
        return lines;
    }

    private static double[] of(String name) {
        return Objects.requireNonNull(STORED.get(name), name);
    }

    private static float[] floats(double... values) {
        float[] result = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            result[i] = (float) values[i];
        }
        return result;
    }

    private enum Stored {
        SGD("sgd.", new SGD.Config(0, 0.1f)),
        MOMENTUM("momentum.", new SGD.Config(0.9f, 0.1f).withDampening(0.3f)),
        NESTEROV("nesterov.", new SGD.Config(0.9f, 0.1f).withKind(Momentum.NESTEROV)),
        AVERAGE("momentum.", new SGD.Config(0.9f, 0.1f).withDampening(0.3f).withAverage(0.9f)),
        LION("lion.", Lion.Config.standard().withWeightDecay(0.1f)),
        /** PyTorch's has neither the same decay nor the same smallest square. */
        ADAFACTOR("adafactor.", Adafactor.Config.standard()),
        ADAFACTOR_RELATIVE("adafactor.relative.", Adafactor.Config.standard().withWeightDecay(0.1f)),
        ADAFACTOR_WARM_UP(
                "adafactor.warm_up.",
                Adafactor.Config.standard().withWeightDecay(0.1f).withRate(Rate.WARM_UP)),
        ADAFACTOR_GIVEN(
                "adafactor.given.",
                Adafactor.Config.standard()
                        .withBeta1(0.9f)
                        .withThreshold(0.5f)
                        .withWeightDecay(0.1f)
                        .withRate(Rate.GIVEN)
                        .withScale(Scale.NONE)),
        SCHEDULE_FREE("schedule_free.y.", ScheduleFreeAdamW.Config.standard().withWeightDecay(0.1f));

        private final String prefix;
        private final OptimizerConfig config;

        Stored(String prefix, OptimizerConfig config) {
            this.prefix = prefix;
            this.config = config;
        }

        private String evaluated() {
            return switch (this) {
                case SCHEDULE_FREE -> "schedule_free.x.";
                case AVERAGE -> "average.";
                default -> prefix;
            };
        }

        private float rate(int step) {
            return this == SCHEDULE_FREE ? RATE * (step + 1) / STEPS : RATE;
        }
    }

    @ParameterizedTest
    @EnumSource
    void stepsAreThoseThatAreStored(Stored stored) {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.zeros(), 6, 4);
        plan.declare("b", Initializer.zeros(), 5);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3)) {
            parameters.all().forEach(one -> open.set(one.weight(), of("first." + one.name())));
            try (Optimizer optimizer = stored.config.make(parameters, List.of())) {
                for (int step = 0; step < STEPS; step++) {
                    parameters.completeGradients();
                    for (Parameter one : parameters.all()) {
                        open.set(one.gradient(), of("gradient" + step + "." + one.name()));
                    }
                    optimizer.step(stored.rate(step));
                }
                assertWeights(stored.prefix, parameters);
                optimizer.beginEvaluation();
                assertWeights(stored.evaluated(), parameters);
            }
        }
    }

    private static void assertWeights(String prefix, Parameters parameters) {
        for (Parameter one : parameters.all()) {
            assertArrayEquals(floats(of(prefix + one.name())), open.read(one.weight()), 1e-6f, prefix + one.name());
        }
    }

    /** PyTorch computes orthogonal matrices in BF16. */
    @Test
    void muonTakesNearlyTheStepsOfPyTorch() {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.zeros(), 6, 4);
        Muon.Config config = Muon.Config.standard().withAdjustment(Muon.Adjustment.ORIGINAL);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.FLOAT32, 3)) {
            Parameter a = parameters.get("a");
            open.set(a.weight(), of("first.a"));
            try (Muon muon = new Muon(parameters, config)) {
                for (int step = 0; step < STEPS; step++) {
                    parameters.completeGradients();
                    open.set(a.gradient(), of("gradient" + step + ".a"));
                    muon.step(RATE);
                }
                assertArrayEquals(floats(of("muon.a")), open.read(a.weight()), 0.02f * STEPS * RATE);
            }
        }
    }

    /** A step without gradients, betas or decay leaves states as they are: each code comes back, and stands for the stored number. */
    @Test
    void codesStandForTheStoredNumbers() {
        int count = StepState.BLOCK;
        double[] codes = new double[count];
        for (int i = 0; i < count; i++) {
            codes[i] = i;
        }
        // With the gradient 1, a rate of 1 and beta1 = 0.5, Adam's weight moves by the mean, its square by the other
        // code.
        for (boolean isSigned : new boolean[] {true, false}) {
            Tensor mean = bytes(isSigned ? shifted(codes) : new double[count]);
            Tensor square = bytes(isSigned ? new double[count] : codes);
            Tensor weight = open.tensor(DType.FLOAT32, new double[count], count);
            StepRange range = new StepRange(
                    open.tensor(DType.FLOAT32, isSigned ? new double[count] : ones(count), count),
                    weight,
                    null,
                    new StepState(mean, open.tensor(DType.FLOAT32, new double[] {isSigned ? 1 : 0}, 1)),
                    new StepState(square, open.tensor(DType.FLOAT32, new double[] {isSigned ? 0 : 1}, 1)),
                    open.tensor(DType.FLOAT32, new double[] {1}, 1),
                    null,
                    0);
            float beta = 0.5f;
            new OptimizerStep(Method.ADAM, beta, beta, isSigned ? 1 : 1e-6f, WeightDecay.DECOUPLED, BiasCorrection.NO)
                    .step(
                            StepRanges.of(List.of(range), open.scope()),
                            open.ints(1),
                            open.tensor(DType.FLOAT32, new double[] {1}, 1),
                            open.ints(0),
                            open.stream());
            float[] moved = open.read(weight);
            double[] expected = of(isSigned ? "signed_codes" : "unsigned_codes");
            assertEquals(count, expected.length);
            for (int i = 0; i < count; i++) {
                // Signed: w = -0.5 code / (0 + 1). Unsigned: w = -0.5 / (sqrt(0.5 code + 0.5) + 1e-6).
                double code = isSigned ? -2 * moved[i] : 2 * Math.pow(-0.5 / moved[i] - 1e-6, 2) - 1;
                StepState.Codes numbers = isSigned ? StepState.Codes.SIGNED : StepState.Codes.UNSIGNED;
                byte stored = (byte) (isSigned ? i - 127 : i);
                assertEquals((float) expected[i], numbers.number(stored), Math.ulp((float) expected[i]));
                assertEquals(stored, numbers.nearest(numbers.number(stored)));
                assertEquals(expected[i], code, isSigned ? 1e-6 * Math.abs(expected[i]) + 1e-12 : 2e-6, "code " + i);
            }
        }
    }

    @Test
    void nearestCodesAreThoseOfNumbersAround() {
        for (StepState.Codes codes : StepState.Codes.values()) {
            for (int i = -1200; i <= 1200; i++) {
                float number = i / 1000f * Math.abs(i) / 1000; // many small ones
                float found = Math.abs(codes.number(codes.nearest(number)) - number);
                for (int code = 0; code < StepState.BLOCK; code++) {
                    assertTrue(found <= Math.abs(codes.number((byte) code) - number), number + " of " + codes);
                }
            }
            assertEquals(0, codes.nearest(0));
            assertEquals(0, codes.nearest(-0f));
            float between = (codes.number((byte) 1) + codes.number((byte) 2)) / 2;
            assertTrue(
                    between - codes.number((byte) 1) > codes.number((byte) 2) - between || codes.nearest(between) == 1);
        }
        assertEquals(-127, StepState.Codes.SIGNED.nearest(-1));
        assertEquals(-1, StepState.Codes.UNSIGNED.nearest(2));
    }

    /** The byte 0 stands for 0, the code 127 of signed numbers. */
    private static double[] shifted(double... codes) {
        return Arrays.stream(codes).map(code -> code - 127).toArray();
    }

    private static double[] ones(int count) {
        double[] values = new double[count];
        Arrays.fill(values, 1);
        return values;
    }

    private static Tensor bytes(double... values) {
        byte[] bytes = new byte[values.length];
        for (int i = 0; i < values.length; i++) {
            bytes[i] = (byte) (int) values[i];
        }
        Tensor tensor = open.scope().tensor(DType.BYTE, bytes.length);
        tensor.set(open.stream(), bytes);
        return tensor;
    }
}
