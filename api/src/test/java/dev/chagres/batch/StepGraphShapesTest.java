package dev.chagres.batch;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.batch.GraphedTraining.Observed;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.optim.LossScaler;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import java.util.List;
import java.util.Objects;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Steps of padded batches, and of several micro-batches under a loss scale, captured and replayed. */
@Tag("L0")
@Tag("L1")
class StepGraphShapesTest {
    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private GraphedTraining training(BatchShape shape, DType dtype, Observed observed) {
        return new GraphedTraining(device, shape, 0.1f, 4, observed, WeightStorage.MODEL_TYPE, dtype);
    }

    /** Rows of up to 32 tokens: 4 rows, or 16 of which a bucket's are rounded up, or 2 in each of 3 micro-batches. */
    @ParameterizedTest
    @CsvSource({"128, 1, BFLOAT16", "512, 1, BFLOAT16", "192, 3, BFLOAT16", "128, 1, FLOAT16", "192, 3, FLOAT16"})
    void aReplayedStepOfPaddedBatchesIsTheSameStep(int tokens, int microBatches, DType dtype) {
        BatchShape shape = new BatchShape(BatchLayout.PADDED, tokens, 32, microBatches);
        float[][] all = new float[2][];
        for (Observed observed : Observed.values()) {
            try (GraphedTraining training = training(shape, dtype, observed)) {
                all[observed.ordinal()] = training.run();
                assertEquals(observed == Observed.NO, training.graph.replayed() > 3, training.graph.explain());
                assertTrue(training.graph.explain().contains(" rows of 32"), training.graph.explain());
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    @Test
    void paddedBatchesInEightBits() {
        BatchShape shape = new BatchShape(BatchLayout.PADDED, 512, 32);
        float[][] all = new float[2][];
        for (Observed observed : Observed.values()) {
            try (GraphedTraining training = training(shape, DType.BFLOAT16, observed)) {
                training.pass.autocast(Quantizers.allocate(training.parameters, Float8CurrentScaling.standard()));
                all[observed.ordinal()] = training.run();
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    /** Memory that was handed out before holds NaN. */
    @ParameterizedTest
    @ValueSource(ints = {1, 3})
    void nothingDependsOnWhatLiesBehindTheTokensOfARow(int microBatches) {
        BatchShape shape = new BatchShape(BatchLayout.PADDED, microBatches == 1 ? 512 : 192, 32, microBatches);
        float[] usual;
        try (GraphedTraining training = training(shape, DType.BFLOAT16, Observed.NO)) {
            usual = training.run();
        }
        MemoryReuse before = MemoryReuse.chosen();
        MemoryReuse.choose(MemoryReuse.POISONED);
        try (GraphedTraining training = training(shape, DType.BFLOAT16, Observed.NO)) {
            assertArrayEquals(usual, training.run());
        } finally {
            MemoryReuse.choose(before);
        }
    }

    /** A batch's loss does not depend on its layout, nor on the rows of padding. */
    @Test
    void rowsOfPaddingAddNothing() {
        float[] losses = new float[3];
        BatchShape[] shapes = {
            new BatchShape(BatchLayout.PADDED, 128, 32),
            new BatchShape(BatchLayout.PADDED, 512, 32),
            new BatchShape(BatchLayout.PACKED, 128, 32)
        };
        for (int i = 0; i < shapes.length; i++) {
            try (GraphedTraining training =
                    new GraphedTraining(device, shapes[i], 0, 4, Observed.NO, WeightStorage.MODEL_TYPE)) {
                training.upload(20, 10, 5);
                training.step(0);
                losses[i] = training.loss.toFloats(device.stream())[0];
            }
        }
        assertEquals(losses[2], losses[0], 1e-3f);
        assertEquals(losses[2], losses[1], 1e-3f);
    }

    /** The first steps have gradients that are not finite, one of them is replayed; then the scale has fallen. */
    @Test
    void aReplayedStepOfSeveralScaledMicroBatchesIsTheSameStep() {
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 192, 32, 3);
        float[][] all = new float[2][];
        float[] scales = new float[2];
        for (Observed observed : Observed.values()) {
            try (GraphedTraining training = training(shape, DType.FLOAT16, observed)) {
                all[observed.ordinal()] = training.run();
                LossScaler scaler = Objects.requireNonNull(training.scaler);
                scales[observed.ordinal()] = scaler.currentScale();
                long skipped = scaler.skippedSteps();
                assertTrue(skipped >= 3 && skipped < 8, skipped + " steps were skipped");
                assertEquals(observed == Observed.NO, training.graph.replayed() > 3, training.graph.explain());
            }
        }
        assertArrayEquals(all[0], all[1]);
        assertEquals(scales[0], scales[1]);
    }

    /** A replayed step whose gradients are not finite changes the scale and the counts alone. */
    @ParameterizedTest
    @CsvSource({"PACKED, 192, 3", "PADDED, 192, 3", "PADDED, 128, 1"})
    void aReplayedStepThatIsNotFiniteLeavesEverything(BatchLayout layout, int tokens, int microBatches) {
        BatchShape shape = new BatchShape(layout, tokens, 32, microBatches);
        try (GraphedTraining training = training(shape, DType.FLOAT16, Observed.NO)) {
            LossScaler scaler = Objects.requireNonNull(training.scaler);
            scaler.scale().set(device.stream(), 1024f);
            for (int i = 0; i < 3; i++) {
                training.upload(20, 10, 30, 7);
                training.step(0.001f);
            }
            assertEquals(2, training.graph.replayed(), training.graph.explain());
            assertEquals(0, scaler.skippedSteps());
            scaler.scale().set(device.stream(), 0x1p80f);
            List<float[]> before = training.state();
            training.upload(20, 10, 30, 7);
            training.step(0.001f);
            assertEquals(3, training.graph.replayed());
            List<float[]> after = training.state();
            for (int i = 0; i < before.size(); i++) {
                assertArrayEquals(before.get(i), after.get(i));
            }
            assertEquals(1, scaler.skippedSteps());
            assertEquals(0x1p74f, scaler.currentScale());
            assertEquals(3, training.optimizer.step());
            assertEquals(4, training.parameters.step());
        }
    }

    @Test
    void lengthsOfPaddedSequencesAreNoOffsets() {
        try (Scope scope = device.openScope()) {
            CuSeqlens lengths = CuSeqlens.fixed(scope, 4, 32);
            assertEquals(128, lengths.tokens());
            assertThrown(
                    IllegalArgumentException.class,
                    "cuSeqlens: expected offsets of packed tokens, got lengths of padded sequences; use"
                            + " Sequences.padded, or CuSeqlens.fixed with the number of tokens",
                    () -> Sequences.packed(lengths));
            assertThrown(
                    IllegalArgumentException.class,
                    "sequences, longest: expected at most 2147483647 tokens in all, got 65536 sequences of 65536",
                    () -> CuSeqlens.fixed(scope, 65536, 65536));
            assertThrown(
                    IllegalArgumentException.class,
                    "sequences, longest, tokens: expected numbers from 0 to 2147483646, got 4, -1 and 0",
                    () -> CuSeqlens.fixed(scope, 4, -1));
        }
    }
}
