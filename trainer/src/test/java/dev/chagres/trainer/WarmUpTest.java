package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepResult;
import dev.chagres.bindings.Provider;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.trainer.PlannedBatch.SyntheticSequences;
import java.util.ArrayList;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class WarmUpTest {
    private static final int CONTEXT = 64;
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 2, CONTEXT);

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

    private static SequencePacker shipped(BatchShape shape) {
        var sequences = new ShuffledSequences(FastaSource.shipped(), 5, 1 << 20);
        return new SequencePacker(shape, new MaskedProteins(sequences));
    }

    /** Trains, after so many warm-ups; returns losses, norms and, at last, all weights. */
    private double[] trainAfter(int warmUps, DType dtype, BatchShape shape) {
        var numbers = new ArrayList<Double>();
        var result = new StepResult();
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, dtype, shape, 5));
                var packer = shipped(shape)) {
            assertTrue(packer.fill(batch));
            int tokens = batch.tokens();
            for (int i = 0; i < warmUps; i++) {
                training.warmUp(batch, () -> false);
            }
            assertEquals(tokens, batch.tokens());
            for (int i = 0; i < 4; i++) {
                training.upload(batch);
                training.step(0.01f);
                training.result(result);
                numbers.add(result.loss());
                numbers.add(result.gradNorm());
                assertTrue(packer.fill(batch));
            }
            for (float weight : training.model().parameters().weights().toFloats(device.stream())) {
                numbers.add((double) weight);
            }
        }
        return numbers.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @ParameterizedTest
    @CsvSource({"FLOAT32, PACKED, 1", "BFLOAT16, PACKED, 1", "FLOAT32, PADDED, 1", "FLOAT32, PACKED, 2"})
    void aWarmUpLeavesNoTrace(DType dtype, BatchLayout layout, int microBatches) {
        Assumptions.assumeTrue(
                Provider.current() == Provider.REFERENCE, "left out on CUDA: cuDNN's gradients differ from run to run");
        var shape = new BatchShape(layout, 256, CONTEXT, microBatches);
        double[] plain = trainAfter(0, dtype, shape);
        assertArrayEquals(plain, trainAfter(1, dtype, shape));
        assertArrayEquals(plain, trainAfter(3, dtype, shape));
    }

    /** The first batch of the data may be smaller than later ones. */
    @Test
    void aWarmUpTakesTheMemoryOfTheLargestBatch() {
        var shape = new BatchShape(BatchLayout.PACKED, 2048, CONTEXT);
        var batch = new Batch(shape);
        try (var training = ModelTraining.of(device, setup(CONFIG, DType.FLOAT32, shape, 5))) {
            assertTrue(new SequencePacker(shape, new SyntheticSequences(16, 1, 16)).fill(batch));
            training.warmUp(batch, () -> false);
            long after = training.memoryBytes();
            assertTrue(new SequencePacker(shape, new SyntheticSequences(2048, 100, CONTEXT)).fill(batch));
            assertEquals(2048, batch.tokens());
            for (int i = 0; i < 2; i++) {
                training.upload(batch);
                training.step(0.01f);
                training.result(new StepResult());
            }
            assertEquals(after, training.memoryBytes());
        }
    }

    @Test
    void aWarmUpEndsWhenItIsToldTo() {
        var shape = new BatchShape(BatchLayout.PACKED, 256, CONTEXT);
        var batch = new Batch(shape);
        var asked = new int[1];
        try (var training = ModelTraining.of(device, setup(CONFIG, DType.FLOAT32, shape, 5));
                var packer = shipped(shape)) {
            assertTrue(packer.fill(batch));
            long before = training.memoryBytes();
            training.warmUp(batch, () -> ++asked[0] > 0);
            assertEquals(1, asked[0]);
            assertEquals(before, training.memoryBytes());
            training.warmUp(batch, () -> false);
            assertTrue(training.memoryBytes() > before, "a warm-up takes the memory that steps will use");
        }
    }
}
