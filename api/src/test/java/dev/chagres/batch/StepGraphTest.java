package dev.chagres.batch;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.attention.AttentionMask;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.CastStatistics;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Gemm;
import dev.chagres.te.RecipeUpdates.AmaxAlgorithm;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Steps that are captured and replayed: the same bits as steps enqueued one by one. */
@Tag("L0")
@Tag("L1")
class StepGraphTest {
    /** The batches whose step is enqueued one by one or captured. */
    private static final List<Integer> HOST_CALLS = List.of(0, 1, 3, 4);

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private void replayedIsEnqueued(float dropout, @Nullable Recipe recipe) {
        replayedIsEnqueued(dropout, recipe, WeightStorage.MODEL_TYPE, DType.BFLOAT16);
    }

    private void replayedIsEnqueued(float dropout, @Nullable Recipe recipe, WeightStorage storage, DType dtype) {
        float[] enqueued;
        float[] replayed;
        try (GraphedTraining training = training(dropout, GraphedTraining.Observed.YES, storage, dtype)) {
            autocast(training, recipe);
            enqueued = training.run();
            assertEquals(0, training.graph.replayed());
            String explained = training.graph.explain();
            assertTrue(
                    explained.startsWith("steps replayed: 0, enqueued one by one: " + GraphedTraining.BATCHES.length
                            + "; buckets closed for room: 0\n  enqueued one by one: an observer listens to the pass, and"
                            + " reads the host's clock\n    "),
                    explained);
            assertTrue(explained.lines().count() > 3, explained);
            assertEquals(explained.indexOf("an observer"), explained.lastIndexOf("an observer"), explained);
        }
        try (GraphedTraining training = training(dropout, GraphedTraining.Observed.NO, storage, dtype)) {
            autocast(training, recipe);
            replayed = training.run();
            assertEquals(2, training.graph.enqueued(), training.graph.explain());
            assertEquals(GraphedTraining.BATCHES.length - 2, training.graph.replayed());
        }
        assertArrayEquals(enqueued, replayed);
    }

    private GraphedTraining training(
            float dropout, GraphedTraining.Observed observed, WeightStorage storage, DType dtype) {
        return new GraphedTraining(device, GraphedTraining.SHAPE, dropout, 4, observed, storage, dtype);
    }

    private static void autocast(GraphedTraining training, @Nullable Recipe recipe) {
        if (recipe != null) {
            training.pass.autocast(Quantizers.allocate(training.parameters, recipe));
        }
    }

    @Test
    void aReplayedStepIsTheSameStep() {
        replayedIsEnqueued(0, null);
    }

    @Test
    void aReplayedStepCastsMastersAgain() {
        replayedIsEnqueued(0, DelayedScaling.standard(), WeightStorage.QUANTIZED, DType.BFLOAT16);
    }

    /** Batches have one to three micro-batches, whose shares differ from step to step. */
    @Test
    void aReplayedStepOfSeveralMicroBatchesIsTheSameStep() {
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 192, 32, 3);
        float[][] all = new float[2][];
        for (GraphedTraining.Observed observed : GraphedTraining.Observed.values()) {
            try (GraphedTraining training =
                    new GraphedTraining(device, shape, 0.1f, 4, observed, WeightStorage.MODEL_TYPE)) {
                all[observed.ordinal()] = training.run();
                assertEquals(
                        observed == GraphedTraining.Observed.NO,
                        training.graph.replayed() > 0,
                        training.graph.explain());
                assertTrue(
                        training.graph.explain().contains(" micro-batches of 64 tokens in up to "),
                        training.graph.explain());
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    @Test
    void dropoutDrawsFreshNumbersAtEachReplay() {
        replayedIsEnqueued(0.1f, null);
        try (GraphedTraining training = new GraphedTraining(device, 0.5f, 4, GraphedTraining.Observed.NO)) {
            float[] losses = new float[6];
            for (int i = 0; i < losses.length; i++) {
                training.upload(20, 10);
                training.step(0);
                losses[i] = training.loss.toFloats(device.stream())[0];
            }
            assertEquals(5, training.graph.replayed());
            for (int i = 1; i < losses.length; i++) {
                assertTrue(losses[i] != losses[i - 1], "step " + i + " has drawn the numbers of the one before");
            }
        }
    }

    /** The pass is told another seed while the bucket's graph lives; launches count on from there. */
    @Test
    void aSeedBetweenReplaysIsThatOfTheNextOnes() {
        float[][] all = new float[2][];
        for (GraphedTraining.Observed observed : GraphedTraining.Observed.values()) {
            try (GraphedTraining training = new GraphedTraining(device, 0.5f, 4, observed)) {
                float[] losses = new float[12];
                for (int i = 0; i < losses.length; i++) {
                    if (i == 4 || i == 8) {
                        training.pass.seed(7, 3, 0);
                    }
                    training.upload(20, 10);
                    training.step(0);
                    losses[i] = training.loss.toFloats(device.stream())[0];
                }
                assertEquals(observed == GraphedTraining.Observed.NO ? 11 : 0, training.graph.replayed());
                all[observed.ordinal()] = losses;
            }
        }
        assertArrayEquals(all[0], all[1]);
        for (int i = 0; i < 4; i++) {
            assertEquals(all[1][4 + i], all[1][8 + i], "the same seed, step and micro-batch");
            assertTrue(all[1][i] != all[1][4 + i], "another seed");
        }
    }

    /** Steps 0, 4 and 8 are measured, and enqueued for it; the first of the small bucket is one of them, and the next not captured. */
    @ParameterizedTest
    @MethodSource("recipes")
    void measuredStepsAreEnqueuedAndTheOthersReplayed(Recipe recipe) {
        float[][] all = new float[2][];
        List<List<CastStatistics>> statistics = new ArrayList<>();
        for (GraphedTraining.Observed observed : GraphedTraining.Observed.values()) {
            try (GraphedTraining training = new GraphedTraining(device, 0.1f, 4, observed)) {
                Quantizers quantizers = Quantizers.allocate(training.parameters, recipe);
                training.pass.autocast(quantizers);
                quantizers.measureEvery(4);
                all[observed.ordinal()] = training.run();
                statistics.add(quantizers.statistics());
                if (observed == GraphedTraining.Observed.NO) {
                    assertEquals(6, training.graph.replayed(), training.graph.explain());
                    assertTrue(
                            training.graph
                                    .explain()
                                    .startsWith(
                                            "steps replayed: 6, enqueued one by one: 5, 3 of them because their casts"
                                                    + " were measured; buckets closed for room: 0\n"),
                            training.graph.explain());
                }
            }
        }
        assertArrayEquals(all[0], all[1]);
        assertTrue(statistics.getFirst().size() > 3);
        statistics.getFirst().forEach(one -> assertEquals(8, one.step(), one.toString()));
        assertEquals(texts(statistics.getFirst()), texts(statistics.getLast()));
    }

    private static List<String> texts(List<CastStatistics> statistics) {
        return statistics.stream().map(CastStatistics::toString).toList();
    }

    static List<Recipe> recipes() {
        return List.of(
                DelayedScaling.standard(),
                DelayedScaling.standard()
                        .withAmaxHistoryLength(2)
                        .withAmaxComputeAlgorithm(AmaxAlgorithm.MOST_RECENT)
                        .withAccumulator(Recipe.Product.WEIGHT_GRADIENT, Gemm.Accumulator.FAST),
                Float8CurrentScaling.standard(),
                Float8CurrentScaling.standard().withBackwardOverride(BackwardOverride.DEQUANTIZED),
                Float8BlockScaling.standard(),
                Float8BlockScaling.standard().withBackwardOverride(BackwardOverride.HIGH_PRECISION));
    }

    @ParameterizedTest
    @MethodSource("recipes")
    void aReplayedStepInEightBitsIsTheSameStep(Recipe recipe) {
        replayedIsEnqueued(0, recipe);
    }

    /** The loss scale is too large at first: steps are skipped, and with them the changes of scales. */
    @ParameterizedTest
    @MethodSource("recipes")
    void aReplayedStepInEightBitsAndFp16IsTheSameStep(Recipe recipe) {
        replayedIsEnqueued(0.1f, recipe, WeightStorage.MODEL_TYPE, DType.FLOAT16);
    }

    /** Calibrates, computes in eight bits, then not, each time after the bucket was captured. */
    @Test
    void aPassThatComputesOtherwiseIsCapturedAnew() {
        float[][] all = new float[2][];
        for (GraphedTraining.Observed observed : GraphedTraining.Observed.values()) {
            try (GraphedTraining training = new GraphedTraining(device, 0, 4, observed)) {
                Quantizers quantizers = Quantizers.allocate(training.parameters, DelayedScaling.standard());
                float[] losses = new float[16];
                for (int i = 0; i < losses.length; i++) {
                    switch (i) {
                        case 4 -> training.pass.calibrate(quantizers);
                        case 8 -> training.pass.autocast(quantizers);
                        case 12 -> training.pass.noAutocast();
                        default -> {}
                    }
                    training.upload(20, 10);
                    training.step(i);
                    losses[i] = training.loss.toFloats(device.stream())[0];
                }
                assertEquals(observed == GraphedTraining.Observed.NO ? 12 : 0, training.graph.replayed());
                all[observed.ordinal()] = losses;
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    @Test
    void nothingDependsOnWhatLiesBehindTheBatch() {
        float[] usual;
        try (GraphedTraining training = new GraphedTraining(device, 0.1f, 4, GraphedTraining.Observed.NO)) {
            usual = training.run();
        }
        MemoryReuse before = MemoryReuse.chosen();
        MemoryReuse.choose(MemoryReuse.POISONED);
        try (GraphedTraining training = new GraphedTraining(device, 0.1f, 4, GraphedTraining.Observed.NO)) {
            assertArrayEquals(usual, training.run());
            assertEquals(GraphedTraining.BATCHES.length - 2, training.graph.replayed());
        } finally {
            MemoryReuse.choose(before);
        }
    }

    /** Batches of full sequences have a bucket of their own, in which attention is dense; between them come others. */
    @Test
    void sequencesOfOneLengthHaveTheirOwnBucket() {
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 256, 128);
        AttentionConfig attention = AttentionConfig.of(2, 64, AttentionMask.causal());
        int[][] batches = {{128, 128}, {128, 128}, {120, 128}, {100, 126}, {128, 128}, {128, 100}, {128, 128}};
        float[][] all = new float[2][];
        for (GraphedTraining.Observed observed : GraphedTraining.Observed.values()) {
            try (GraphedTraining training = new GraphedTraining(
                    device, shape, 0.1f, 4, observed, WeightStorage.MODEL_TYPE, DType.BFLOAT16, attention)) {
                float[] losses = new float[batches.length];
                for (int i = 0; i < losses.length; i++) {
                    training.upload(batches[i]);
                    training.step(i);
                    losses[i] = training.loss.toFloats(device.stream())[0];
                }
                all[observed.ordinal()] = losses;
                String text = training.graph.explain();
                assertTrue(
                        text.contains("\n    256 tokens in 2 sequences of exactly 128") // enqueued, or replayed
                                || text.contains("\n  256 tokens in 2 sequences of exactly 128: replayed, "),
                        text);
                assertTrue(text.contains("  256 tokens in up to 16 sequences of up to 128"), text);
                assertEquals(observed == GraphedTraining.Observed.NO ? 5 : 0, training.graph.replayed(), text);
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    /** The padding of a bucket has no labels: the loss is that of the batch alone. */
    @Test
    void paddingAddsNothing() {
        try (GraphedTraining training = new GraphedTraining(device, 0, 4, GraphedTraining.Observed.NO);
                UploadRing plain = new UploadRing(device, GraphedTraining.SHAPE, 1)) {
            training.upload(20, 10, 5);
            training.step(0);
            float padded = training.loss.toFloats(device.stream())[0];
            plain.upload(training.batch);
            training.pass.begin();
            ModelInput input = plain.next(training.pass.scope());
            training.pass.sequences(input.sequences());
            assertEquals(padded, training.loss(input).toFloats(device.stream())[0], 1e-3f);
        }
    }

    @Test
    void keepsNoMoreBucketsThanItMay() {
        float[] all;
        try (GraphedTraining training = new GraphedTraining(device, 0.1f, 4, GraphedTraining.Observed.YES)) {
            all = training.run();
        }
        try (GraphedTraining training = new GraphedTraining(device, 0.1f, 1, GraphedTraining.Observed.NO)) {
            assertArrayEquals(all, training.run());
            assertEquals(4, training.graph.evicted());
            assertEquals(5, training.graph.enqueued());
            assertEquals(6, training.graph.replayed());
            assertTrue(
                    training.graph
                            .explain()
                            .equals("steps replayed: 6, enqueued one by one: 5; buckets closed for room: 4\n"
                                    + "  enqueued one by one so far: the first step builds kernels and takes memory, the"
                                    + " second is captured\n    32 tokens in up to 16 sequences of up to 32"),
                    training.graph.explain());
        }
    }

    @Test
    void aReplayMakesNoJavaObject() {
        ThreadMXBean thread = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long id = Thread.currentThread().threadId();
        try (GraphedTraining training = new GraphedTraining(device, 0.1f, 4, GraphedTraining.Observed.NO)) {
            Batch[] batches = new Batch[2];
            for (int i = 0; i < 2; i++) {
                batches[i] = new Batch(GraphedTraining.SHAPE);
                try (SequencePacker packer = new SequencePacker(
                        GraphedTraining.SHAPE, NumberedSequences.of(GraphedTraining.BATCHES[3 * i]))) {
                    packer.fill(batches[i]);
                }
            }
            long least = Long.MAX_VALUE;
            for (int round = 0; round < 400 && least > 0; round++) {
                long before = thread.getThreadAllocatedBytes(id);
                for (Batch one : batches) {
                    training.uploads.upload(one);
                    training.step(0.001f);
                }
                least = Math.min(least, thread.getThreadAllocatedBytes(id) - before);
            }
            assertEquals(0, least);
        }
    }

    /** The step is repeated from its first micro-batch on, whose gradients must not count twice. */
    @Test
    void aStepThatFailsInALaterMicroBatchIsTheSameStepAgain() {
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 192, 32, 3);
        float[][] all = new float[2][];
        for (int run = 0; run < 2; run++) {
            try (GraphedTraining training =
                    new GraphedTraining(device, shape, 0, 4, GraphedTraining.Observed.NO, WeightStorage.MODEL_TYPE)) {
                if (run == 1) {
                    training.failure = new IllegalStateException("mine");
                    training.failsBefore = 1;
                    training.upload(30, 30, 30, 25);
                    assertSame(training.failure, assertThrows(RuntimeException.class, () -> training.step(0.5f)));
                    training.failure = null;
                } else {
                    training.upload(30, 30, 30, 25);
                }
                training.step(0.001f);
                assertEquals(1, training.parameters.step());
                all[run] = training.parameters.weights().toFloats(device.stream());
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    /** A replay does not run the step, so it cannot know the rate that the step would give the optimizer. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"BFLOAT16", "FLOAT16"})
    void aReplayWithoutARateIsRefused(DType dtype) {
        try (GraphedTraining training = new GraphedTraining(
                device,
                new BatchShape(BatchLayout.PACKED, 128, 32),
                0,
                4,
                GraphedTraining.Observed.NO,
                WeightStorage.MODEL_TYPE,
                dtype)) {
            for (int i = 0; i < 2; i++) { // enqueued, then captured: both run the step
                training.upload(30, 30, 30, 25);
                training.graph.step();
            }
            assertEquals(1, training.graph.replayed(), training.graph.explain());
            training.upload(30, 30, 30, 25);
            assertThrown(
                    IllegalStateException.class,
                    "rate: expected AdamW.rate(rate) before each step that is replayed, got none since the last step; a"
                            + " replay does not run the code that calls AdamW.step(rate, …), so call optimizer.rate(rate)"
                            + " before StepGraph.step(), also if the rate is constant",
                    training.graph::step);
            assertEquals(2, training.parameters.step());
            training.step(0.001f);
            assertEquals(3, training.parameters.step());
            assertEquals(2, training.graph.replayed(), training.graph.explain());
        }
    }

    /** Whatever a step throws reaches the caller, enqueued or captured, and the batch waits for the next call. */
    @Test
    void aStepThatFailsKeepsItsBatch() {
        float[] expected;
        try (GraphedTraining training = new GraphedTraining(device, 0, 4, GraphedTraining.Observed.NO)) {
            expected = training.run();
        }
        try (GraphedTraining training = new GraphedTraining(device, 0, 4, GraphedTraining.Observed.NO)) {
            RuntimeException[] failures = {new IllegalStateException("mine"), new IllegalArgumentException("mine, too")
            };
            float[] losses = new float[GraphedTraining.BATCHES.length];
            for (int i = 0; i < GraphedTraining.BATCHES.length; i++) {
                training.upload(GraphedTraining.BATCHES[i]);
                for (int k = 0; k < failures.length && HOST_CALLS.contains(i); k++) {
                    training.failure = failures[k];
                    assertSame(failures[k], assertThrows(RuntimeException.class, () -> training.step(0.5f)));
                    assertEquals(i, training.parameters.step());
                    assertEquals(i, training.optimizer.step());
                }
                training.failure = null;
                training.step(0.001f * (1 + i % 3));
                losses[i] = training.loss.toFloats(device.stream())[0];
            }
            assertArrayEquals(Arrays.copyOf(expected, GraphedTraining.BATCHES.length), losses);
            assertEquals(GraphedTraining.BATCHES.length - 2, training.graph.replayed(), training.graph.explain());
        }
    }
}
