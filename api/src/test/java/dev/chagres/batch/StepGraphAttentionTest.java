package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.AttentionMask;
import dev.chagres.batch.GraphedTraining.Observed;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.parameter.WeightStorage;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Replayed steps whose attention has heads of 64: on a GPU that is cuDNN's, whose gradients have an order only where they are told. */
@Tag("L0")
@Tag("L1")
class StepGraphAttentionTest {
    private static final AttentionConfig HEADS_OF_64 = AttentionConfig.of(2, 64, AttentionMask.none());
    private static final Tolerance ROUNDED = Tolerances.rounded(DType.BFLOAT16);

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private float[] run(AttentionConfig attention, Observed observed) {
        try (GraphedTraining training = new GraphedTraining(
                device,
                GraphedTraining.SHAPE,
                0.1f,
                4,
                observed,
                WeightStorage.MODEL_TYPE,
                DType.BFLOAT16,
                attention)) {
            float[] all = training.run();
            assertEquals(
                    observed == Observed.NO ? GraphedTraining.BATCHES.length - 2 : 0,
                    training.graph.replayed(),
                    training.graph.explain());
            return all;
        }
    }

    @Test
    void deterministicAttentionIsReplayedBitForBit() {
        float[] enqueued = run(HEADS_OF_64.deterministic(), Observed.YES);
        assertArrayEquals(enqueued, run(HEADS_OF_64.deterministic(), Observed.NO));
    }

    /**
     * Gradients without an order differ in their last bits from run to run, replayed or not, so losses and weights differ by what a
     * rounding to the model's type may change; on the reference they do not. By norm alone: the gradient of a bias of keys is 0 but for its
     * rounding, and the optimizer makes steps of the full rate of it. Replays by the first rate alone are 2.7e-2 and 9.5e-3 apart.
     */
    @Test
    void attentionWithoutAnOrderTrainsAlike() {
        float[] enqueued = run(HEADS_OF_64, Observed.YES);
        float[] replayed = run(HEADS_OF_64, Observed.NO);
        int steps = GraphedTraining.BATCHES.length;
        assertAlike("losses", enqueued, replayed, 0, steps);
        assertAlike("weights", enqueued, replayed, steps, enqueued.length);
    }

    private static void assertAlike(String what, float[] expected, float[] actual, int begin, int end) {
        double difference = 0;
        double norm = 0;
        for (int i = begin; i < end; i++) {
            difference += Math.pow(actual[i] - expected[i], 2);
            norm += Math.pow(expected[i], 2);
        }
        double error = Math.sqrt(difference / norm);
        assertTrue(error <= ROUNDED.frobenius(), what + ": " + error + " of their norm apart, " + ROUNDED);
    }
}
