package dev.chagres.models.esm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.batch.Batch;
import dev.chagres.batch.TrainedModel;
import dev.chagres.models.esm.Esm2ClassifierConfig.Problem;
import dev.chagres.models.esm.Esm2ClassifierConfig.Task;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.Arrays;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;

/** Labels that stand for numbers give the loss and the gradients that a tensor of the numbers gives, and both are those of double precision. */
@Tag("L0")
class TargetsTest {
    private static final Esm2Config ENCODER = new Esm2Config(1, 16, 2, 32);
    private static final int[] IDS = {0, 5, 6, 2, 0, 7, 2, 0, 9, 10, 2};
    private static final int NONE = Batch.IGNORED;

    // @start region="targets"
    /** A model that predicts a number of each sequence: the label of a sequence's first token has the number's bits. */
    static TrainedModel.Factory ofNumbers(Esm2Config encoder) {
        return new Esm2ClassifierConfig(encoder, Task.SEQUENCES, 1, Problem.REGRESSION).reading(Targets.floatBits());
    }

    static int label(float number) {
        return Float.floatToIntBits(number);
    }
    // @end

    private record Computed(float[] logits, float loss, float[] gradient) {}

    private static Computed compute(TrainedModel.Factory factory, int[] labels, float[] numbers, int columns) {
        try (Device device = Device.open();
                Esm2Classifier model = made(device, factory);
                Pass pass = Pass.training(device)) {
            var stream = device.stream();
            pass.begin();
            pass.sequences(Sequences.packed(pass.scope(), 4, 3, 4));
            Tensor ids = pass.scope().tensor(DType.INT32, IDS.length);
            ids.set(stream, IDS);
            Tensor given = labels.length > 0
                    ? pass.scope().tensor(DType.INT32, IDS.length)
                    : pass.scope().tensor(DType.FLOAT32, IDS.length, columns);
            if (labels.length > 0) {
                given.set(stream, labels);
            } else {
                given.set(stream, numbers);
            }
            Tensor loss = model.loss(ids, given, pass);
            float[] logits = model.latestLogits().toFloats(stream);
            float value = loss.toFloats(stream)[0];
            model.backward(1, null, pass);
            return new Computed(
                    logits,
                    value,
                    model.parameters().get("classifier.dense.weight").gradient().toFloats(stream));
        }
    }

    private static Esm2Classifier made(Device device, TrainedModel.Factory factory) {
        return (Esm2Classifier)
                factory.make(device, new ModelPlan(), plan -> Parameters.allocate(device, plan, DType.FLOAT32, 3));
    }

    @Test
    void numbers() {
        float nan = Float.NaN;
        int[] labels = {label(1.5f), NONE, NONE, NONE, label(-100), NONE, NONE, NONE, NONE, NONE, NONE};
        float[] numbers = {1.5f, nan, nan, nan, -100, nan, nan, nan, nan, nan, nan};
        Computed byLabels = compute(ofNumbers(ENCODER), labels, numbers, 1);
        Computed byTensor = compute(ofNumbers(ENCODER), new int[0], numbers, 1);
        assertEquals(byTensor.loss(), byLabels.loss());
        assertArrayEquals(byTensor.gradient(), byLabels.gradient());
        double first = byLabels.logits()[0] - 1.5;
        double second = byLabels.logits()[4 * 16] + 100;
        assertEquals((first * first + second * second) / 2, byLabels.loss(), 1e-3);
    }

    @Test
    void classesThatAreThereTogether() {
        float nan = Float.NaN;
        int[] labels = {5, NONE, NONE, NONE, 0, NONE, NONE, NONE, NONE, NONE, NONE};
        float[] numbers = new float[3 * IDS.length];
        Arrays.fill(numbers, nan);
        System.arraycopy(new float[] {1, 0, 1}, 0, numbers, 0, 3);
        System.arraycopy(new float[] {0, 0, 0}, 0, numbers, 12, 3);
        var config = new Esm2ClassifierConfig(ENCODER, Task.SEQUENCES, 3, Problem.MULTI_LABEL);
        TrainedModel.Factory factory = config.reading((label, row) -> {
            for (int i = 0; i < row.length; i++) {
                row[i] = label >> i & 1;
            }
        });
        Computed byLabels = compute(factory, labels, numbers, 3);
        Computed byTensor = compute(factory, new int[0], numbers, 3);
        assertEquals(byTensor.loss(), byLabels.loss());
        assertArrayEquals(byTensor.gradient(), byLabels.gradient());
        double sum = 0;
        for (int i = 0; i < 3; i++) {
            for (int row : new int[] {0, 4}) {
                double x = byLabels.logits()[row * 16 + i];
                sum += Math.log1p(Math.exp(x)) - x * numbers[row * 3 + i];
            }
        }
        assertEquals(sum / 6, byLabels.loss(), 1e-5);
    }

    /** The device's loss and gradients are those of the host, in other sums. */
    @Test
    void aTableGivesTheSame() {
        float nan = Float.NaN;
        int[] labels = {2, NONE, NONE, NONE, 0, NONE, NONE, NONE, NONE, NONE, NONE};
        float[] numbers = {1.5f, nan, nan, nan, -100, nan, nan, nan, nan, nan, nan};
        var regression = new Esm2ClassifierConfig(ENCODER, Task.SEQUENCES, 1, Problem.REGRESSION);
        assertNear(
                compute(regression, new int[0], numbers, 1),
                compute(
                        regression.reading(Targets.table(new float[] {-100}, new float[] {3}, new float[] {1.5f})),
                        labels,
                        numbers,
                        1));
        float[] sets = new float[3 * IDS.length];
        Arrays.fill(sets, nan);
        System.arraycopy(new float[] {1, 0, 1}, 0, sets, 0, 3);
        System.arraycopy(new float[] {0, 0, 0}, 0, sets, 12, 3);
        var several = new Esm2ClassifierConfig(ENCODER, Task.SEQUENCES, 3, Problem.MULTI_LABEL);
        float[][] rows = {{0, 0, 0}, {1, 1, 1}, {1, 0, 1}};
        assertNear(
                compute(several, new int[0], sets, 3), compute(several.reading(Targets.table(rows)), labels, sets, 3));
        int[] none = new int[IDS.length];
        Arrays.fill(none, NONE);
        Computed empty = compute(several.reading(Targets.table(rows)), none, sets, 3);
        assertEquals(0, empty.loss());
        assertArrayEquals(new float[empty.gradient().length], empty.gradient());
    }

    private static void assertNear(Computed expected, Computed actual) {
        assertEquals(expected.loss(), actual.loss(), 1e-6 * expected.loss());
        double largest = 0;
        for (float value : expected.gradient()) {
            largest = Math.max(largest, Math.abs(value));
        }
        assertTrue(largest > 0);
        for (int i = 0; i < expected.gradient().length; i++) {
            assertEquals(expected.gradient()[i], actual.gradient()[i], 1e-5 * largest, "gradient " + i);
        }
    }

    /** What leaves a token out is no number that a label can have. */
    @Test
    void noNumberIsTakenForNone() {
        float[] row = new float[1];
        Targets.floatBits().write(Batch.IGNORED, row);
        assertTrue(Float.isNaN(row[0]));
        Targets.floatBits().write(label(-0.25f), row);
        assertEquals(-0.25f, row[0]);
    }

    @Test
    void refusals() {
        var config = new Esm2ClassifierConfig(ENCODER, Task.SEQUENCES, 2);
        assertEquals(
                "problem: expected REGRESSION or MULTI_LABEL, got SINGLE_LABEL",
                assertThrows(IllegalArgumentException.class, () -> config.reading(Targets.floatBits()))
                        .getMessage());
        var three = new Esm2ClassifierConfig(ENCODER, Task.SEQUENCES, 3, Problem.MULTI_LABEL);
        for (var refusal : Map.<String, Executable>of(
                        "targets: expected rows of 3 numbers, got 1",
                        () -> three.reading(Targets.table(new float[] {1})),
                        "rows: expected at least one, got none",
                        Targets::table,
                        "rows: expected 1 numbers each, got 2 in row 1",
                        () -> Targets.table(new float[1], new float[2]),
                        "rows: expected finite numbers, got NaN in row 0",
                        () -> Targets.table(new float[] {Float.NaN}))
                .entrySet()) {
            assertEquals(
                    refusal.getKey(),
                    assertThrows(IllegalArgumentException.class, refusal.getValue())
                            .getMessage());
        }
        try (Device device = Device.open();
                Esm2Classifier model = made(device, config)) {
            assertEquals(
                    "latestLogits: expected a call of loss before",
                    assertThrows(IllegalStateException.class, model::latestLogits)
                            .getMessage());
        }
    }
}
