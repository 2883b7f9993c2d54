package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.launch.Ranks;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.sharding.RankedRun.Variant;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Buckets that are summed while backward runs give the bits of those that are summed after it. */
@Tag("L0")
@Tag("L2")
class DataParallelOverlapTest {
    private static final int STEPS = 4;
    private static final int GROUPS = SmallModel.LAYERS + 2;

    private enum Sums {
        AFTER,
        OVERLAPPED
    }

    private record Run(List<float[]> weights, String explained) {}

    private static void microBatch(SmallModel model, Pass pass, int step, int part) {
        int[] lengths = {5, 2 + part, 9};
        int[][] batch = SmallModel.batch(100L * step + part, lengths);
        pass.seed(5, step, part);
        pass.sequences(Sequences.packed(pass.scope(), lengths));
        Tensor embedded = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
        Tensor logits = model.head.forward(model.layers.forward(embedded, pass), pass);
        model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), pass);
        model.backward(pass);
    }

    /** The last rank has no micro-batch in the last step. */
    private static List<Run> run(int ranks, Variant variant, Sums sums, long bucketBytes) {
        DevicesNeeded.assume(ranks);
        return Ranks.local(ranks).run(rank -> {
            Device device = rank.device();
            try (SmallModel model = new SmallModel(device, DType.FLOAT32, 0.1f, variant.wrapper(), variant.frozen());
                    AdamW optimizer = new AdamW(model.parameters, AdamW.Config.standard());
                    Pass pass = Pass.training(device);
                    DataParallel training = DataParallel.of(
                            model.parameters,
                            rank.communicator(),
                            DataParallelConfig.standard().withBucketBytes(bucketBytes))) {
                GradientNorm norm = new GradientNorm(model.parameters, 1);
                training.follow(pass);
                String explained = "";
                for (int step = 0; step < STEPS; step++) {
                    boolean idle = rank.index() > 0 && rank.index() == ranks - 1 && step == STEPS - 1;
                    for (int part = 0; part < 2 && !idle; part++) {
                        pass.begin();
                        if (sums == Sums.OVERLAPPED && part == 1) {
                            training.lastMicroBatch();
                        }
                        microBatch(model, pass, step, 2 * rank.index() + part);
                    }
                    training.sumGradients();
                    explained = training.explain();
                    norm.compute();
                    optimizer.step(1e-2f, norm);
                }
                List<float[]> weights = new ArrayList<>();
                for (Parameter parameter : model.parameters.all()) {
                    weights.add(parameter.weight().toFloats(device.stream()));
                }
                return new Run(weights, explained);
            }
        });
    }

    @ParameterizedTest
    @EnumSource(
            value = Variant.class,
            names = {"DROPOUT", "RECOMPUTED", "FROZEN_BOTTOM"})
    void bitsAreThoseOfSumsAfterBackward(Variant variant) {
        compare(3, variant, 1);
    }

    @ParameterizedTest
    @ValueSource(longs = {1, 60_000, Long.MAX_VALUE})
    void bucketsOfAnySize(long bucketBytes) {
        compare(2, Variant.PLAIN, bucketBytes);
    }

    private static void compare(int ranks, Variant variant, long bucketBytes) {
        List<Run> after = run(ranks, variant, Sums.AFTER, Long.MAX_VALUE);
        List<Run> overlapped = run(ranks, variant, Sums.OVERLAPPED, bucketBytes);
        for (int rank = 0; rank < ranks; rank++) {
            for (int i = 0; i < after.get(rank).weights.size(); i++) {
                assertArrayEquals(
                        after.getFirst().weights.get(i),
                        overlapped.get(rank).weights.get(i),
                        "weights of parameter " + i);
            }
        }
    }

    @Test
    void everyBucketIsSummedWhileBackwardRuns() {
        List<Run> runs = run(2, Variant.PLAIN, Sums.OVERLAPPED, 1);
        String text = runs.getFirst().explained;
        assertTrue(
                text.startsWith("gradients summed over 2 ranks in " + GROUPS + " buckets, in this order; " + GROUPS
                        + " were sent while backward was running:\n  head: "),
                text);
        assertTrue(text.contains("\n  layers.3: "), text);
        assertTrue(text.lines().toList().getLast().startsWith("  embedding: "), text);
        assertTrue(runs.get(1).explained.contains(" 0 were sent"), "a rank without sequences sums after");
        String recomputed = run(2, Variant.RECOMPUTED, Sums.OVERLAPPED, 1).getFirst().explained;
        assertTrue(recomputed.contains(GROUPS + " were sent"), recomputed);
    }

    /** The first bucket is on its way before backward has reached the layers below. */
    @Test
    void aBucketIsSummedBeforeBackwardEnds() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Communicator one = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
                DataParallel training = DataParallel.of(
                        model.parameters, one, DataParallelConfig.standard().withBucketBytes(1));
                Pass pass = Pass.training(device)) {
            training.follow(pass);
            pass.begin();
            training.lastMicroBatch();
            int[][] batch = SmallModel.batch(3, SmallModel.LENGTHS);
            pass.sequences(Sequences.packed(pass.scope(), SmallModel.LENGTHS));
            Tensor embedded = model.embedding.forward(model.ints(pass.scope(), batch[0]), pass);
            Tensor logits = model.head.forward(model.layers.forward(embedded, pass), pass);
            model.crossEntropy.forward(logits, model.ints(pass.scope(), batch[1]), pass);
            assertEquals(0, overlapped(training));
            Tensor dy = model.head.backward(model.crossEntropy.backward(pass), pass);
            assertEquals(1, overlapped(training), "the head, whose tied table waits for the embedding");
            Tensor dx = model.layers.backward(dy, pass);
            assertEquals(GROUPS - 1, overlapped(training));
            model.embedding.backward(dx, pass);
            assertEquals(GROUPS, overlapped(training));
        }
    }

    private static int overlapped(DataParallel training) {
        String text = training.explain();
        String order = "in this order; ";
        String sent = text.substring(text.indexOf(order) + order.length());
        return Integer.parseInt(sent.substring(0, sent.indexOf(' ')));
    }

    @Test
    void misuse() {
        try (Device device = Device.open();
                SmallModel model = SmallModel.plain(device, DType.FLOAT32);
                Communicator one = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
                DataParallel training = DataParallel.of(model.parameters, one);
                Pass pass = Pass.training(device);
                var stream = device.openStream();
                Pass other = Pass.training(stream)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "bucketBytes: expected at least 1, got 0",
                    () -> DataParallel.of(
                            model.parameters, one, DataParallelConfig.standard().withBucketBytes(0)));
            assertThrown(
                    IllegalArgumentException.class,
                    "pass: expected one on the parameters' stream, got training pass on stream of device 0",
                    () -> training.follow(other));
            training.follow(pass);
            pass.begin();
            training.lastMicroBatch();
            microBatch(model, pass, 0, 0);
            assertThrown(
                    IllegalStateException.class,
                    "gradient of embedding.weight: summed over the ranks already, got another backward call; call"
                            + " lastMicroBatch only before the step's last micro-batch, with all its forward calls"
                            + " before its backward calls, and not at all with several passes under way at once",
                    () -> {
                        pass.begin();
                        microBatch(model, pass, 0, 1);
                    });
            pass.begin(); // forgets the gradients: the step can be repeated
            pass.sequences(Sequences.packed(pass.scope(), 3));
            model.embedding.forward(model.ints(pass.scope(), 1, 2, 3), pass);
            assertThrown(
                    IllegalStateException.class,
                    "lastMicroBatch: expected after pass.begin() and before the first layer, got it after a layer",
                    training::lastMicroBatch);
            pass.begin();
            training.lastMicroBatch();
            microBatch(model, pass, 0, 0);
            training.sumGradients();
            assertThrown(
                    IllegalStateException.class,
                    "lastMicroBatch: expected before sumGradients, got it after; take the optimizer's step first",
                    training::lastMicroBatch);
            assertEquals("data-parallel training on rank 0 of 1, 1 bucket", training.toString());
            assertThrown(
                    IllegalStateException.class,
                    "the parameters belong to data-parallel training on rank 0 of 1, 1 bucket already; close that"
                            + " before another shards them",
                    () -> DataParallel.of(model.parameters, one));
        }
    }
}
