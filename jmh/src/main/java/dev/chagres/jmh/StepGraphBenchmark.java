package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.StepGraph;
import dev.chagres.batch.UploadRing;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What does the replay of a captured training step (forward, backward, clipping and update) cost, in time of the host and of the device?
 *
 * <p>Each call begins with an idle stream and an uploaded batch. {@code step} times the host until the replay is enqueued; {@code launch}
 * the same without the copy of the batch to the addresses that the graph reads, since the batch is there already. {@code untilIdle} times
 * until the device is done. On the reference all are the same: it computes before it returns.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 2)
@Measurement(iterations = 5, time = 2)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class StepGraphBenchmark {
    private static final float RATE = 1e-4f;

    /** Tokens of a step. */
    @Param({"16384"})
    public int tokens;

    /** In what precision the products of the layers are computed. */
    @Param({"BF16"})
    public LayerRecipe recipe;

    private Device device;
    private EncoderModel model;
    private Pass pass;
    private AdamW adam;
    private GradientNorm norm;
    private UploadRing uploads;
    private StepGraph graph;
    /** The step of {@link #graph} by itself. */
    private Graph alone;

    private boolean waiting;
    private dev.chagres.Scope scope;
    private Tensor loss;
    private Batch batch;
    private SequencePacker packer;

    /** Makes model and batch, and trains some steps, of which the second is captured. */
    @Setup
    public void prepare() {
        device = Device.open();
        scope = device.openScope();
        loss = scope.tensor(DType.FLOAT32, 1);
        model = new EncoderModel(device);
        pass = Pass.training(device);
        recipe.begin(model.parameters(), pass);
        norm = new GradientNorm(model.parameters(), 1);
        adam = new AdamW(model.parameters(), AdamW.Config.standard().withMasters(AdamW.Masters.REMAINDER));
        BatchShape shape = new BatchShape(BatchLayout.PACKED, tokens, EncoderModel.CONTEXT, 1);
        uploads = UploadRing.padded(device, shape, 2, SyntheticProteins.PADDING);
        graph = new StepGraph(uploads, shape, pass, 4, this::enqueue);
        packer = new SequencePacker(shape, new SyntheticProteins());
        batch = new Batch(shape);
        packer.fill(batch);
        float first = 0;
        for (int i = 0; i < 10; i++) {
            upload();
            step();
            first = i == 0 ? loss.toFloats(device.stream())[0] : first;
        }
        float last = loss.toFloats(device.stream())[0];
        if (graph.replayed() == 0 || !(last < first)) {
            throw new IllegalStateException("expected replays and a loss that falls, got a loss of " + first + ", then "
                    + last + ", and " + graph.explain());
        }
        upload();
        List<ModelInput> inputs = step();
        pass.end();
        alone = device.stream().capture(() -> enqueue(inputs));
        checkLaunch(last);
    }

    private void checkLaunch(float before) {
        alone.launch();
        float after = loss.toFloats(device.stream())[0];
        if (!(after < before)) {
            throw new IllegalStateException(
                    "expected launches to train on, got a loss of " + before + ", then " + after);
        }
    }

    private void enqueue(List<ModelInput> microBatches) {
        pass.begin();
        loss.copyFrom(device.stream(), model.forwardAndBackward(microBatches.getFirst(), pass));
        norm.compute();
        adam.step(RATE, norm);
    }

    /** Uploads the batch unless one waits, and waits until the device has nothing to do. */
    @Setup(Level.Invocation)
    public void upload() {
        if (!waiting) {
            uploads.upload(batch);
            waiting = true;
        }
        device.synchronize();
    }

    /** The host's time. */
    @Benchmark
    public List<ModelInput> step() {
        waiting = false;
        adam.rate(RATE);
        return graph.step();
    }

    /** The host's time without the copy of the batch. */
    @Benchmark
    public Graph launch() {
        alone.launch();
        return alone;
    }

    /** The time until the device is done. */
    @Benchmark
    public List<ModelInput> untilIdle() {
        List<ModelInput> inputs = step();
        device.stream().synchronize();
        return inputs;
    }

    /** Closes what was opened. */
    @TearDown
    public void close() {
        packer.close();
        alone.close();
        graph.close();
        uploads.close();
        adam.close();
        pass.close();
        model.close();
        scope.close();
        device.close();
    }

    /** Embedding, encoder layers, norm and tied decoder, of the sizes of ESM-2 8M. */
    private static final class EncoderModel implements AutoCloseable {
        static final int CONTEXT = 1_024;
        static final int VOCABULARY = 64;

        private static final int LAYERS = 6;
        private static final int HIDDEN = 320;
        private static final int HEADS = 20;
        private static final Initializer WEIGHTS = Initializer.normal(0.02f);

        private final Embedding embedding;
        private final Sequential layers;
        private final LayerNorm norm;
        private final Linear decoder;
        private final CrossEntropy crossEntropy;
        private final Parameters parameters;
        private final dev.chagres.Scope scope;

        EncoderModel(Device device) {
            ModelPlan plan = new ModelPlan();
            embedding = new Embedding(VOCABULARY, HIDDEN, WEIGHTS, plan.group("embedding"));
            AttentionConfig attention = AttentionConfig.of(HEADS, HIDDEN / HEADS, AttentionMask.none());
            TransformerLayerConfig config = TransformerLayerConfig.encoder(HIDDEN, attention);
            layers = Sequential.of(LAYERS, i -> new TransformerLayer(config, plan.group("layers." + i)));
            norm = new LayerNorm(NormConfig.layerNorm(HIDDEN), plan.group("norm"));
            decoder = Linear.tied(embedding.weight(), plan.group("head"));
            crossEntropy = new CrossEntropy(VOCABULARY);
            scope = device.openScope();
            RotaryEmbedding rotary = RotaryEmbedding.of(scope, CONTEXT, HIDDEN / HEADS);
            layers.layers().forEach(one -> ((TransformerLayer) one).rotate(rotary));
            parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
        }

        Parameters parameters() {
            return parameters;
        }

        /** Enqueues forward and backward of a micro-batch, and returns its loss, FLOAT32 [1]. */
        Tensor forwardAndBackward(ModelInput input, Pass pass) {
            pass.sequences(input.sequences());
            Tensor x = layers.forward(embedding.forward(input.ids(), pass), pass);
            Tensor loss = crossEntropy.forward(decoder.forward(norm.forward(x, pass), pass), input.labels(), pass);
            Tensor gradient = norm.backward(decoder.backward(crossEntropy.backward(1, pass), pass), pass);
            layers.backward(gradient, gradient, pass);
            embedding.backward(gradient, pass);
            return loss;
        }

        @Override
        public void close() {
            parameters.close();
            scope.close();
        }
    }
}
