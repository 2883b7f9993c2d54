package dev.chagres.train;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.management.ThreadMXBean;
import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Layer;
import dev.chagres.layer.Linear;
import dev.chagres.layer.Pass;
import dev.chagres.layer.PassObserver;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameter;
import dev.chagres.model.Parameters;
import dev.chagres.model.WeightStorage;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Quantizers;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Steps that are captured and replayed: the same bits as steps enqueued one by one. */
@Tag("L0")
@Tag("L1")
class StepGraphTest {
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32);
    private static final int VOCABULARY = 1024;
    private static final int HIDDEN = 32;
    /** Two buckets: small ones, larger ones, small ones again; no two batches are alike. */
    private static final int[][] BATCHES = {
        {20, 10},
        {12, 9, 8},
        {5, 5, 5, 14},
        {30, 30, 30, 25},
        {31, 29, 32, 28},
        {32, 32, 32, 30},
        {32},
        {17, 3, 2},
        {1, 1, 30},
        {31, 30, 29, 28},
        {25, 6}
    };

    /** The batches whose step is enqueued one by one or captured. */
    private static final List<Integer> HOST_CALLS = List.of(0, 1, 3, 4);

    private final Device device = Device.open();

    @AfterEach
    void closeDevice() {
        device.close();
    }

    private enum Observed {
        YES,
        NO
    }

    /** A small language model in training. */
    private final class Training implements AutoCloseable {
        private final ModelPlan plan = new ModelPlan();
        private final Embedding embedding =
                new Embedding(VOCABULARY, HIDDEN, Initializer.normal(1), plan.group("embedding"));
        private final TransformerLayer layer;
        private final Linear head = new Linear(HIDDEN, VOCABULARY, Initializer.normal(0.02f), plan.group("head"));
        private final CrossEntropy crossEntropy = new CrossEntropy(VOCABULARY);
        private final Parameters parameters;
        private final GradientNorm norm;
        private final AdamW optimizer;
        private final Pass pass = Pass.training(device);
        private final BatchShape shape;
        private final UploadRing uploads;
        private final Scope scope = device.openScope();
        private final Tensor loss = scope.tensor(DType.FLOAT32, 1);
        /** Of the second micro-batch on. */
        private final List<Tensor> otherLosses = new ArrayList<>();

        private final Batch batch;
        private final StepGraph graph;
        private float rate;
        private @Nullable RuntimeException failure;

        Training(float dropout, int most, Observed observed) {
            this(dropout, most, observed, WeightStorage.MODEL_TYPE);
        }

        Training(float dropout, int most, Observed observed, WeightStorage storage) {
            this(SHAPE, dropout, most, observed, storage);
        }

        Training(BatchShape shape, float dropout, int most, Observed observed, WeightStorage storage) {
            this.shape = shape;
            uploads = UploadRing.padded(device, shape, 2, NumberedSequences.PADDING);
            batch = new Batch(shape);
            for (int i = 1; i < shape.microBatches(); i++) {
                otherLosses.add(scope.tensor(DType.FLOAT32, 1));
            }
            TransformerLayerConfig config =
                    TransformerLayerConfig.encoder(HIDDEN, AttentionConfig.of(2, 16, AttentionMask.none()));
            if (dropout > 0) {
                config = config.withHiddenDropout(Dropout.of(dropout));
            }
            layer = new TransformerLayer(config, plan.group("layers.0"));
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 42, storage);
            norm = new GradientNorm(parameters, 1);
            optimizer = new AdamW(parameters, AdamW.Config.standard());
            graph = new StepGraph(uploads, shape, pass, most, this::enqueue);
            if (observed == Observed.YES) {
                pass.observe(new PassObserver() {
                    @Override
                    public void entering(Layer layer, Direction direction, Pass pass) {}

                    @Override
                    public void left(Layer layer, Direction direction, Pass pass, long keptBytes) {}
                });
            }
        }

        private void enqueue(List<ModelInput> microBatches) {
            for (int i = 0; i < microBatches.size(); i++) {
                ModelInput input = microBatches.get(i);
                pass.begin(input.sequences());
                (i == 0 ? loss : otherLosses.get(i - 1)).copyFrom(device.stream(), loss(input));
                Tensor dlogits = shape.microBatches() == 1
                        ? crossEntropy.backward(1, pass)
                        : crossEntropy.backward(1, input.deviceShare(), pass);
                Tensor gradient = head.backward(dlogits, pass);
                if (failure != null) {
                    throw failure;
                }
                embedding.backward(layer.backward(gradient, pass), pass);
            }
            norm.compute();
            optimizer.step(rate, norm);
        }

        private Tensor loss(ModelInput input) {
            Tensor x = layer.forward(embedding.forward(input.ids(), pass), pass);
            return crossEntropy.forward(head.forward(x, pass), input.labels(), pass);
        }

        void upload(int... lengths) {
            try (SequencePacker packer = new SequencePacker(shape, NumberedSequences.of(lengths))) {
                assertTrue(packer.fill(batch));
            }
            uploads.upload(batch);
        }

        /** Returns the loss of the step that was enqueued last. */
        private float lossOf(List<ModelInput> microBatches) {
            double sum = microBatches.getFirst().share() * loss.toFloats(device.stream())[0];
            for (int i = 1; i < microBatches.size(); i++) {
                sum += microBatches.get(i).share() * otherLosses.get(i - 1).toFloats(device.stream())[0];
            }
            return (float) sum;
        }

        List<ModelInput> step(float newRate) {
            rate = newRate;
            optimizer.rate(newRate);
            return graph.step();
        }

        /** Trains on all batches and returns the losses and all weights. */
        float[] run() {
            float[] results = new float[BATCHES.length];
            for (int i = 0; i < BATCHES.length; i++) {
                upload(BATCHES[i]);
                results[i] = lossOf(step(0.001f * (1 + i % 3)));
            }
            assertEquals(BATCHES.length, parameters.step());
            assertEquals(BATCHES.length, optimizer.step());
            float[] all = results;
            for (Parameter parameter : parameters.all()) {
                float[] weights = parameter.weight().toFloats(device.stream());
                int before = all.length;
                all = Arrays.copyOf(all, before + weights.length);
                System.arraycopy(weights, 0, all, before, weights.length);
            }
            return all;
        }

        @Override
        public void close() {
            graph.close();
            uploads.close();
            pass.close();
            optimizer.close();
            parameters.close();
            scope.close();
        }
    }

    private void replayedIsEnqueued(float dropout, boolean eightBits) {
        replayedIsEnqueued(dropout, eightBits, WeightStorage.MODEL_TYPE);
    }

    private void replayedIsEnqueued(float dropout, boolean eightBits, WeightStorage storage) {
        float[] enqueued;
        float[] replayed;
        try (Training training = new Training(dropout, 4, Observed.YES, storage)) {
            if (eightBits) {
                training.pass.autocast(Quantizers.allocate(training.parameters, DelayedScaling.standard()));
            }
            enqueued = training.run();
            assertEquals(0, training.graph.replayed());
            assertTrue(training.graph.explain().contains("an observer listens to the pass"), training.graph.explain());
        }
        try (Training training = new Training(dropout, 4, Observed.NO, storage)) {
            if (eightBits) {
                training.pass.autocast(Quantizers.allocate(training.parameters, DelayedScaling.standard()));
            }
            replayed = training.run();
            assertEquals(2, training.graph.enqueued(), training.graph.explain());
            assertEquals(BATCHES.length - 2, training.graph.replayed());
        }
        assertArrayEquals(enqueued, replayed);
    }

    @Test
    void aReplayedStepIsTheSameStep() {
        replayedIsEnqueued(0, false);
    }

    @Test
    void aReplayedStepCastsMastersAgain() {
        replayedIsEnqueued(0, true, WeightStorage.QUANTIZED);
    }

    /** Batches have one to three micro-batches, whose shares differ from step to step. */
    @Test
    void aReplayedStepOfSeveralMicroBatchesIsTheSameStep() {
        BatchShape shape = new BatchShape(BatchLayout.PACKED, 192, 32, 3);
        float[][] all = new float[2][];
        for (Observed observed : Observed.values()) {
            try (Training training = new Training(shape, 0.1f, 4, observed, WeightStorage.MODEL_TYPE)) {
                all[observed.ordinal()] = training.run();
                assertEquals(observed == Observed.NO, training.graph.replayed() > 0, training.graph.explain());
                assertTrue(
                        training.graph.explain().contains(" micro-batches of 64 tokens in up to "),
                        training.graph.explain());
            }
        }
        assertArrayEquals(all[0], all[1]);
    }

    @Test
    void dropoutDrawsFreshNumbersAtEachReplay() {
        replayedIsEnqueued(0.1f, false);
        try (Training training = new Training(0.5f, 4, Observed.NO)) {
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

    @Test
    void aReplayedStepInEightBitsIsTheSameStep() {
        replayedIsEnqueued(0, true);
    }

    @Test
    void nothingDependsOnWhatLiesBehindTheBatch() {
        float[] usual;
        try (Training training = new Training(0.1f, 4, Observed.NO)) {
            usual = training.run();
        }
        MemoryReuse before = MemoryReuse.chosen();
        MemoryReuse.choose(MemoryReuse.POISONED);
        try (Training training = new Training(0.1f, 4, Observed.NO)) {
            assertArrayEquals(usual, training.run());
            assertEquals(BATCHES.length - 2, training.graph.replayed());
        } finally {
            MemoryReuse.choose(before);
        }
    }

    /** The padding of a bucket has no labels: the loss is that of the batch alone. */
    @Test
    void paddingAddsNothing() {
        try (Training training = new Training(0, 4, Observed.NO);
                UploadRing plain = new UploadRing(device, SHAPE, 1)) {
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
        try (Training training = new Training(0.1f, 4, Observed.YES)) {
            all = training.run();
        }
        try (Training training = new Training(0.1f, 1, Observed.NO)) {
            assertArrayEquals(all, training.run());
            assertEquals(4, training.graph.evicted());
            assertEquals(5, training.graph.enqueued());
            assertEquals(6, training.graph.replayed());
            assertTrue(
                    training.graph
                            .explain()
                            .startsWith("6 steps replayed, 5 enqueued one by one, 4 buckets closed for room\n"
                                    + "  32 tokens in up to 16 sequences of up to 32: enqueued one by one so far"),
                    training.graph.explain());
        }
    }

    @Test
    void aReplayMakesNoJavaObject() {
        ThreadMXBean thread = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long id = Thread.currentThread().threadId();
        try (Training training = new Training(0.1f, 4, Observed.NO)) {
            Batch[] batches = new Batch[2];
            for (int i = 0; i < 2; i++) {
                batches[i] = new Batch(SHAPE);
                try (SequencePacker packer = new SequencePacker(SHAPE, NumberedSequences.of(BATCHES[3 * i]))) {
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

    /** Whatever a step throws reaches the caller, enqueued or captured, and the batch waits for the next call. */
    @Test
    void aStepThatFailsKeepsItsBatch() {
        float[] expected;
        try (Training training = new Training(0, 4, Observed.NO)) {
            expected = training.run();
        }
        try (Training training = new Training(0, 4, Observed.NO)) {
            RuntimeException[] failures = {new IllegalStateException("mine"), new IllegalArgumentException("mine, too")
            };
            float[] losses = new float[BATCHES.length];
            for (int i = 0; i < BATCHES.length; i++) {
                training.upload(BATCHES[i]);
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
            assertArrayEquals(Arrays.copyOf(expected, BATCHES.length), losses);
            assertEquals(BATCHES.length - 2, training.graph.replayed(), training.graph.explain());
        }
    }
}
