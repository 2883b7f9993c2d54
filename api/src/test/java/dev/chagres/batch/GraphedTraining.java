package dev.chagres.batch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.memory.MemoryReuse;
import dev.chagres.launch.Rank;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.Linear;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.optim.LossScaler;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.PassObserver;
import dev.chagres.sharding.DataParallel;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** A small language model in training by a step graph. In FP16 its loss is scaled, by too much at first. */
final class GraphedTraining implements AutoCloseable {
    static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32);
    /** A scale at which the first steps' gradients are not finite. */
    private static final LossScaler.Config SCALING =
            LossScaler.Config.standard().withInitialScale(0x1p40f).withBackoffFactor(0x1p-6f);

    private static final int VOCABULARY = 1024;
    private static final int HIDDEN = 32;
    /** Two buckets: small ones, larger ones, small ones again; no two batches are alike. */
    static final int[][] BATCHES = {
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

    /** Whether an observer listens, so that nothing is captured. */
    enum Observed {
        YES,
        NO
    }

    private final Device device;
    private final ModelPlan plan = new ModelPlan();
    private final Embedding embedding =
            new Embedding(VOCABULARY, HIDDEN, Initializer.normal(1), plan.group("embedding"));
    private final TransformerLayer layer;
    private final Linear head = new Linear(HIDDEN, VOCABULARY, Initializer.normal(0.02f), plan.group("head"));
    private final CrossEntropy crossEntropy = new CrossEntropy(VOCABULARY);
    final Parameters parameters;
    private final GradientNorm norm;
    final AdamW optimizer;
    final Pass pass;
    private final BatchShape shape;
    final UploadRing uploads;
    private final Scope scope;
    final Tensor loss;
    /** Of the second micro-batch on. */
    private final List<Tensor> otherLosses = new ArrayList<>();

    final Batch batch;
    final StepGraph graph;
    /** Null but in FP16. */
    final @Nullable LossScaler scaler;

    private float rate;
    private int rank;
    private int ranks = 1;
    private @Nullable DataParallel parallel;

    @Nullable
    RuntimeException failure;

    /** The micro-batch before whose forward calls a failure comes; negative where it comes between backward calls of the first. */
    int failsBefore = -1;

    GraphedTraining(Device device, float dropout, int most, Observed observed) {
        this(device, dropout, most, observed, WeightStorage.MODEL_TYPE);
    }

    GraphedTraining(Device device, float dropout, int most, Observed observed, WeightStorage storage) {
        this(device, SHAPE, dropout, most, observed, storage);
    }

    GraphedTraining(
            Device device, BatchShape shape, float dropout, int most, Observed observed, WeightStorage storage) {
        this(device, shape, dropout, most, observed, storage, DType.BFLOAT16);
    }

    GraphedTraining(
            Device device,
            BatchShape shape,
            float dropout,
            int most,
            Observed observed,
            WeightStorage storage,
            DType dtype) {
        this(device, shape, dropout, most, observed, storage, dtype, AttentionConfig.of(2, 16, AttentionMask.none()));
    }

    GraphedTraining(
            Device device,
            BatchShape shape,
            float dropout,
            int most,
            Observed observed,
            WeightStorage storage,
            DType dtype,
            AttentionConfig attention) {
        this.device = device;
        this.shape = shape;
        pass = Pass.training(device);
        scope = device.openScope();
        loss = scope.tensor(DType.FLOAT32, 1);
        uploads = UploadRing.padded(device, shape, 2, NumberedSequences.PADDING);
        batch = new Batch(shape);
        for (int i = 1; i < shape.microBatches(); i++) {
            otherLosses.add(scope.tensor(DType.FLOAT32, 1));
        }
        TransformerLayerConfig config = TransformerLayerConfig.encoder(HIDDEN, attention);
        if (dropout > 0) {
            config = config.withHiddenDropout(Dropout.of(dropout));
        }
        layer = new TransformerLayer(config, plan.group("layers.0"));
        parameters = Parameters.allocate(device, plan, dtype, 42, storage);
        scaler = dtype == DType.FLOAT16 ? new LossScaler(parameters, SCALING) : null;
        norm = scaler == null ? new GradientNorm(parameters, 1) : new GradientNorm(scaler, 1);
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
            if (failure != null && i == failsBefore) {
                throw failure;
            }
            if (i % ranks != rank) {
                continue;
            }
            (i == 0 ? loss : otherLosses.get(i - 1)).copyFrom(device.stream(), loss(input));
            Tensor gradient = head.backward(lossGradient(input), pass);
            if (failure != null && failsBefore < 0) {
                throw failure;
            }
            embedding.backward(layer.backward(gradient, pass), pass);
        }
        if (parallel != null) {
            parallel.sumGradients();
        }
        norm.compute();
        optimizer.step(rate, norm);
    }

    /** Computes its own of each step's micro-batches from now on, and sums gradients with the other ranks. */
    void share(Rank with) {
        rank = with.index();
        ranks = with.count();
        parallel = DataParallel.of(parameters, with.communicator());
        parallel.follow(pass);
    }

    private Tensor lossGradient(ModelInput input) {
        if (shape.microBatches() > 1) {
            return crossEntropy.backward(
                    1, scaler == null ? input.deviceShare() : input.deviceShare(scaler, pass), pass);
        }
        return scaler == null ? crossEntropy.backward(1, pass) : crossEntropy.backward(1, scaler.scale(), pass);
    }

    Tensor loss(ModelInput input) {
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
    float lossOf(List<ModelInput> microBatches) {
        double sum = microBatches.getFirst().share() * loss.toFloats(device.stream())[0];
        for (int i = 1; i < microBatches.size(); i++) {
            sum += microBatches.get(i).share() * otherLosses.get(i - 1).toFloats(device.stream())[0];
        }
        return (float) sum;
    }

    /** Returns where the loss of a rank's first micro-batch lies. */
    Tensor lossOfRank(int index) {
        return index == 0 ? loss : otherLosses.get(index - 1);
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
        if (Provider.current() == Provider.REFERENCE && MemoryReuse.chosen() != MemoryReuse.POISONED) {
            String explained = graph.explain(); // On a GPU libraries may fill memory themselves.
            assertFalse(explained.contains("fill memory"), explained);
        }
        assertEquals(BATCHES.length, parameters.step());
        assertEquals(BATCHES.length - (scaler == null ? 0 : scaler.skippedSteps()), optimizer.step());
        float[] all = results;
        for (Parameter parameter : parameters.all()) {
            float[] weights = parameter.weight().toFloats(device.stream());
            int before = all.length;
            all = Arrays.copyOf(all, before + weights.length);
            System.arraycopy(weights, 0, all, before, weights.length);
        }
        return all;
    }

    /** Returns weights, moments and masters. */
    List<float[]> state() {
        List<float[]> all = new ArrayList<>();
        for (Parameter parameter : parameters.all()) {
            all.add(parameter.weight().toFloats(device.stream()));
        }
        optimizer.state().tensors().values().forEach(tensor -> {
            if (tensor.dtype().isFloat()) {
                all.add(tensor.toFloats(device.stream()));
            }
        });
        return all;
    }

    @Override
    public void close() {
        graph.close();
        uploads.close();
        pass.close();
        if (parallel != null) {
            parallel.close();
        }
        optimizer.close();
        parameters.close();
        scope.close();
    }
}
