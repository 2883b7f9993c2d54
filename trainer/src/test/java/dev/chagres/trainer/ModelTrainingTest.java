package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.ListedSequences;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.parameter.Parameter;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
class ModelTrainingTest {
    private static final int CONTEXT = 64;
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 2, CONTEXT);

    /** Of FP32 on a GPU, where products are of TF32: a last bit that differs may become one of 2^-11 of an operand. */
    private static final double TOLERANCE = Provider.current() == Provider.CUDA ? 1e-3 : 1e-5;

    private final StepResult result = new StepResult();
    private Device device;

    @BeforeEach
    void open() {
        device = Device.open();
    }

    @AfterEach
    void close() {
        if (device != null) {
            device.close();
        }
    }

    private static ModelSetup setup(Esm2Config config, DType dtype, BatchShape shape, long seed) {
        return ModelSetup.of(config, shape).with(seed).with(new ModelSetup.Precision(dtype, null));
    }

    private static SequencePacker shipped(BatchShape shape, long seed) {
        return new SequencePacker(
                shape, new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), seed, 1 << 20)));
    }

    private double[] train(DType dtype, BatchShape shape, long seed, int steps, float learningRate) {
        double[] losses = new double[steps];
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, dtype, shape, seed));
                var packer = shipped(shape, seed)) {
            for (int i = 0; i < steps; i++) {
                assertTrue(packer.fill(batch));
                training.upload(batch);
                training.step(learningRate);
                training.result(result);
                losses[i] = result.loss();
            }
        }
        return losses;
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void learns(DType dtype) {
        var shape = new BatchShape(BatchLayout.PACKED, 1024, CONTEXT);
        double[] losses = train(dtype, shape, 1, 60, 5e-3f);
        assertEquals(
                Math.log(33), losses[0], 0.05, "a model that knows nothing gives each of 33 tokens the same chance");
        double last = Arrays.stream(losses, 50, 60).average().orElseThrow();
        assertTrue(last < 3.0, "mean loss of the last ten steps is " + last);
    }

    /** Padding to a bucket adds tokens without labels: sums are cut elsewhere, and nothing else changes. */
    @ParameterizedTest
    @CsvSource({
        "FLOAT32, PACKED, 1",
        "FLOAT16, PACKED, 1",
        "FLOAT32, PADDED, 1",
        "FLOAT32, PADDED, 2",
        "FLOAT16, PACKED, 2"
    })
    void replayedStepsLearnTheSame(DType dtype, BatchLayout layout, int microBatches) {
        var shape = new BatchShape(layout, 256, CONTEXT, microBatches);
        double[] expected = train(dtype, shape, 7, 12, 1e-3f);
        double[] losses = new double[expected.length];
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, dtype, shape, 7));
                var packer = shipped(shape, 7)) {
            assertNull(training.explainSteps());
            training.captureSteps();
            for (int i = 0; i < losses.length; i++) {
                assertTrue(packer.fill(batch));
                training.upload(batch);
                training.step(1e-3f);
                training.result(result);
                losses[i] = result.loss();
            }
            String explained = String.valueOf(training.explainSteps());
            assertTrue(explained.contains("replayed, "), explained);
            assertFalse(explained.startsWith("steps replayed: 0,"), explained);
            assertEquals(
                    "captureSteps was called already",
                    assertThrows(IllegalStateException.class, training::captureSteps)
                            .getMessage());
        }
        assertArrayEquals(expected, losses, dtype == DType.FLOAT32 ? TOLERANCE : 4e-3);
    }

    /** FP16 has three more bits than BF16, and the loss's scale keeps its small gradients. */
    @Test
    void fp16FollowsFp32() {
        var shape = new BatchShape(BatchLayout.PACKED, 256, CONTEXT);
        double[] exact = train(DType.FLOAT32, shape, 7, 12, 1e-3f);
        assertArrayEquals(exact, train(DType.FLOAT16, shape, 7, 12, 1e-3f), 4e-3);
    }

    @Test
    void theSeedDecidesEveryLoss() {
        var shape = new BatchShape(BatchLayout.PACKED, 256, CONTEXT);
        double[] losses = train(DType.FLOAT32, shape, 7, 8, 1e-3f);
        assertArrayEquals(losses, train(DType.FLOAT32, shape, 7, 8, 1e-3f));
        assertFalse(Arrays.equals(losses, train(DType.FLOAT32, shape, 8, 8, 1e-3f)));
    }

    /** Lengths at the ends: one residue, one below, at and above the context. */
    private static List<String> sequences() {
        var random = new Random(4);
        var sequences = new ArrayList<String>();
        for (int length : new int[] {1, 2, 13, 14, 15, 40, CONTEXT - 3, CONTEXT - 2, CONTEXT - 1, 30}) {
            var text = new StringBuilder();
            for (int i = 0; i < length; i++) {
                text.append("LAGVSERTIDPKQNFYMHWC".charAt(random.nextInt(20)));
            }
            sequences.add(text.toString());
        }
        return sequences;
    }

    private record Gradients(double loss, double norm, List<Parameter> parameters, List<float[]> values) {}

    private Gradients gradients(BatchLayout layout, int tokens) {
        var shape = new BatchShape(layout, tokens, CONTEXT);
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, DType.FLOAT32, shape, 3));
                var packer = new SequencePacker(shape, new MaskedProteins(new ListedSequences(sequences())))) {
            assertTrue(packer.fill(batch));
            assertEquals(sequences().size(), batch.microBatch(0).realSequences());
            training.upload(batch);
            training.step(0);
            training.result(result);
            var values = new ArrayList<float[]>();
            List<Parameter> parameters = training.model().parameters().all();
            for (Parameter parameter : parameters) {
                values.add(parameter.gradient().toFloats(device.stream()));
            }
            return new Gradients(result.loss(), result.gradNorm(), parameters, values);
        }
    }

    private static double norm(float[] a, float[] b) {
        double sum = 0;
        for (int i = 0; i < a.length; i++) {
            double difference = (double) a[i] - b[i];
            sum += difference * difference;
        }
        return Math.sqrt(sum);
    }

    @Test
    void packedAndPaddedGiveTheSameLossAndGradients() {
        Gradients packed = gradients(BatchLayout.PACKED, 512);
        Gradients padded = gradients(BatchLayout.PADDED, CONTEXT * sequences().size());
        assertEquals(packed.loss, padded.loss, TOLERANCE * packed.loss);
        assertEquals(packed.norm, padded.norm, TOLERANCE * packed.norm);
        assertTrue(packed.norm > 1, "not clipped: " + packed.norm);
        for (int i = 0; i < packed.values.size(); i++) {
            float[] one = packed.values.get(i);
            double own = norm(one, new float[one.length]);
            double difference = norm(one, padded.values.get(i));
            // A gradient that is 0 but for rounding, such as the key bias's, is measured against the whole, clipped to
            // 1.
            assertTrue(
                    difference <= TOLERANCE * (own + 1e-2),
                    packed.parameters.get(i) + ": differs by " + difference + " of " + own);
        }
    }

    @Test
    void theGradientIsTheSlopeOfTheLoss() {
        Assumptions.assumeTrue(
                Provider.current() == Provider.REFERENCE,
                "left out on CUDA: the loss of TF32 products is too coarse for a slope");
        var shape = new BatchShape(BatchLayout.PACKED, 512, CONTEXT);
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, DType.FLOAT32, shape, 3));
                var packer = new SequencePacker(shape, new MaskedProteins(new ListedSequences(sequences())))) {
            assertTrue(packer.fill(batch));
            var weights = training.model().parameters().weights();
            // Away from the beginning, where most gradients are tiny.
            float[] here = weights.toFloats(device.stream());
            var random = new Random(9);
            for (int i = 0; i < here.length; i++) {
                here[i] = here[i] * 5 + 0.05f * (float) random.nextGaussian();
            }
            weights.set(device.stream(), here);
            loss(training, batch);
            // The optimizer leaves the gradients clipped; their direction is what counts here.
            float[] gradient = training.model().parameters().gradients().toFloats(device.stream());
            double length = norm(gradient, new float[gradient.length]);
            double norm = result.gradNorm();
            double step = 1e-4;
            double[] losses = new double[2];
            for (int side = 0; side < 2; side++) {
                float[] there = here.clone();
                for (int i = 0; i < there.length; i++) {
                    there[i] += (float) ((2 * side - 1) * step * gradient[i] / length);
                }
                weights.set(device.stream(), there);
                losses[side] = loss(training, batch);
            }
            double slope = (losses[1] - losses[0]) / (2 * step);
            assertEquals(norm, slope, 0.01 * norm);
        }
    }

    private double loss(ModelTraining training, Batch batch) {
        training.upload(batch);
        training.step(0);
        training.result(result);
        return result.loss();
    }

    /** Were anything made in each step, no round could be free of it; what the JVM itself makes once is let pass. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void aSteadyStepMakesNoObject(int microBatches) {
        var shape = new BatchShape(BatchLayout.PACKED, 128 * microBatches, CONTEXT, microBatches);
        var threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        var batches = new Batch[8];
        long least = Long.MAX_VALUE;
        long memory = 0;
        try (var training = ModelTraining.of(device, setup(CONFIG, DType.FLOAT32, shape, 3));
                var packer = shipped(shape, 1)) {
            for (int i = 0; i < batches.length; i++) {
                batches[i] = new Batch(shape);
                assertTrue(packer.fill(batches[i]));
            }
            for (int round = 0; round < 10; round++) {
                long before = threads.getCurrentThreadAllocatedBytes();
                for (Batch batch : batches) {
                    loss(training, batch);
                }
                least = Math.min(least, threads.getCurrentThreadAllocatedBytes() - before);
                assertTrue(round < 2 || training.memoryBytes() == memory, "device memory still grows");
                memory = training.memoryBytes();
            }
        }
        assertEquals(0, least);
    }

    @Test
    void countsParametersAndOperations() {
        var shape = new BatchShape(BatchLayout.PACKED, 1024, 1024);
        try (var training =
                ModelTraining.of(device, setup(new Esm2Config(6, 320, 20, 1024), DType.FLOAT32, shape, 3))) {
            long products = 12 * 320 * 320;
            long biasesAndNorms = 3 * 320 + 320 + 4 * 320 + 320 + 4 * 320;
            long head = 320 * 320 + 320 + 2 * 320 + 64;
            // Embedding, whose table is the decoder's too; layers; last norm; head.
            assertEquals(64 * 320 + 6 * (products + biasesAndNorms) + 2 * 320 + head, training.parameterCount());
        }
        // 6 a weight of the products and token; attention forward 4 H a pair and layer, backward twice that.
        double products = 6.0 * (6 * 12 * 320 * 320 + 320 * 320 + 64 * 320) * 100;
        assertEquals(products + 12.0 * 6 * 320 * 5000, new Esm2Config(6, 320, 20, 64).flops(100, 5000), 1);
    }

    @Test
    void callsOutOfOrderAreRefused() {
        var shape = new BatchShape(BatchLayout.PACKED, 128, CONTEXT);
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, DType.FLOAT32, shape, 3));
                var packer = shipped(shape, 1)) {
            assertTrue(packer.fill(batch));
            assertMessage("no batch waits to be computed; call upload(batch) first", () -> training.step(0));
            assertMessage("no result is unread, 0 steps were made", () -> training.result(result));
            for (int i = 0; i < 3; i++) {
                training.upload(batch);
            }
            assertMessage(
                    "all 3 batches of the ring wait to be computed; call next(scope) for each micro-batch of the oldest",
                    () -> training.upload(batch));
            training.step(0);
            training.step(0);
            assertMessage("the result of step 1 must be read first", () -> training.step(0));
            training.result(result);
            training.result(result);
            training.close();
        }
    }

    private static void assertMessage(String message, org.junit.jupiter.api.function.Executable action) {
        assertEquals(message, assertThrows(IllegalStateException.class, action).getMessage());
    }
}
