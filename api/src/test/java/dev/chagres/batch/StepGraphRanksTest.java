package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.GraphedTraining.Observed;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.CallMode;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.parameter.WeightStorage;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** A thousand replayed steps of data-parallel ranks, enqueued without a wait between them. */
@Tag("L0")
@Tag("L2")
class StepGraphRanksTest {
    private static final int RANKS = 2;
    private static final int STEPS = 1_000;
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 64, 16, 2);
    private static final long SEED = 20_251_125;

    /** The losses of all steps, then weights and the optimizer's state; how many steps were replayed, and why others were not. */
    private record Trained(List<float[]> numbers, long replayed, String explained) {}

    private static Trained train(Rank rank, Observed observed) {
        return train(rank, observed, STEPS);
    }

    private static Trained train(Rank rank, Observed observed, int steps) {
        Device device = rank.device();
        Random random = new Random(SEED);
        try (GraphedTraining training =
                        new GraphedTraining(device, SHAPE, 0.1f, 4, observed, WeightStorage.MODEL_TYPE);
                Scope scope = device.openScope()) {
            training.share(rank);
            // Read at the end alone: so launches follow each other as fast as the host can.
            Tensor losses = scope.tensor(DType.FLOAT32, steps);
            training.lossOfRank(rank.index()).zero(device.stream());
            for (int i = 0; i < steps; i++) {
                training.upload(lengths(random));
                training.step(0.001f * random.nextFloat());
                scope.view(losses, i, 1).copyFrom(device.stream(), training.lossOfRank(rank.index()));
            }
            List<float[]> all = new ArrayList<>();
            all.add(losses.toFloats(device.stream()));
            all.addAll(training.state());
            assertEquals(steps, training.optimizer.step());
            return new Trained(all, training.graph.replayed(), training.graph.explain());
        }
    }

    /** One micro-batch, so that the second rank has none and keeps its loss, or two. */
    private static int[] lengths(Random random) {
        int[] lengths = new int[random.nextInt(4) == 0 ? 2 : 4];
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] = 9 + random.nextInt(8);
        }
        return lengths;
    }

    @Test
    void aThousandReplaysAreTheEnqueuedSteps() {
        DevicesNeeded.assume(RANKS);
        List<Trained> enqueued = Ranks.local(RANKS).run(rank -> train(rank, Observed.YES));
        List<Trained> replayed = Ranks.local(RANKS).run(rank -> train(rank, Observed.NO));
        for (int rank = 0; rank < RANKS; rank++) {
            assertEquals(0, enqueued.get(rank).replayed());
            assertTrue(
                    replayed.get(rank).replayed() >= STEPS - 12,
                    "replayed " + replayed.get(rank).replayed());
            List<float[]> expected = enqueued.get(rank).numbers();
            for (int i = 0; i < expected.size(); i++) {
                assertArrayEquals(
                        expected.get(i), replayed.get(rank).numbers().get(i), "rank " + rank + ", seed " + SEED);
            }
        }
        float[] losses = enqueued.getFirst().numbers().getFirst();
        assertTrue(losses[STEPS - 1] < losses[0], "the loss falls");
    }

    @Test
    void stepsWithPolledCallsAreEnqueuedAndSayWhy() {
        DevicesNeeded.assume(RANKS);
        CommunicatorConfig polled = CommunicatorConfig.standard().withCallMode(CallMode.NON_BLOCKING);
        List<Trained> expected = Ranks.local(RANKS).run(rank -> train(rank, Observed.YES, 12));
        List<Trained> actual = Ranks.local(RANKS).withConfig(polled).run(rank -> train(rank, Observed.NO, 12));
        for (int rank = 0; rank < RANKS; rank++) {
            assertEquals(0, actual.get(rank).replayed());
            String explained = actual.get(rank).explained();
            assertTrue(
                    explained.contains(
                            "enqueued one by one: DataParallel: expected a communicator with callMode BLOCKING"
                                    + " for a step that is captured, got NON_BLOCKING in communicator \"world\", rank "
                                    + rank + " of 2; enqueue the step, or open the communicator with"
                                    + " CommunicatorConfig.withCallMode(CallMode.BLOCKING)"),
                    explained);
            for (int i = 0; i < expected.get(rank).numbers().size(); i++) {
                assertArrayEquals(
                        expected.get(rank).numbers().get(i),
                        actual.get(rank).numbers().get(i),
                        "rank " + rank);
            }
        }
    }
}
