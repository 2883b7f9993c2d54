package dev.chagres.train;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.AttentionMask;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.model.WeightStorage;
import dev.chagres.train.GraphedTraining.Observed;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Replayed steps whose attention has heads of 64: on a GPU that is cuDNN's, whose gradients have an order only where they are told. */
@Tag("L0")
@Tag("L1")
class StepGraphAttentionTest {
    private static final AttentionConfig HEADS_OF_64 = AttentionConfig.of(2, 64, AttentionMask.none());
    /** How much further than enqueued steps from each other a replayed one may be from them: three runs say little of the largest. */
    private static final float SPREAD = 4;

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

    /** Gradients without an order differ in their last bits from run to run, replayed or not; on the reference they do not. */
    @Test
    void attentionWithoutAnOrderDiffersNoMoreThanEnqueued() {
        float[] first = run(HEADS_OF_64, Observed.YES);
        float spread = Math.max(
                largestDifference(first, run(HEADS_OF_64, Observed.YES)),
                largestDifference(first, run(HEADS_OF_64, Observed.YES)));
        float replayed = largestDifference(first, run(HEADS_OF_64, Observed.NO));
        assertTrue(replayed <= SPREAD * spread, "replayed " + replayed + ", enqueued " + spread);
    }

    private static float largestDifference(float[] one, float[] other) {
        float largest = 0;
        for (int i = 0; i < one.length; i++) {
            largest = Math.max(largest, Math.abs(one[i] - other[i]));
        }
        return largest;
    }
}
