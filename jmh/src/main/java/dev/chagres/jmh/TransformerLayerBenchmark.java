package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.Pass;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import java.util.Arrays;
import java.util.SplittableRandom;
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
 * What does one TransformerLayer cost, forward and backward, over packed sequences of BFLOAT16: to the host, and to the
 * device?
 *
 * <p>{@code enqueue} times the host until the last call has returned, beginning with an idle stream; {@code untilIdle} until
 * the device is done. On the reference both are the same: it computes before it returns.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 2)
@Measurement(iterations = 5, time = 2)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class TransformerLayerBenchmark {
    /** Shape of the layer and its input. */
    @Param({"CPU"})
    public LayerShape shape;

    /** In what precision its products are computed. */
    @Param({"BF16"})
    public LayerRecipe recipe;

    private Device device;
    private Parameters parameters;
    private TransformerLayer layer;
    private Pass pass;
    private Sequences sequences;
    private Tensor x;
    private Tensor dy;

    /** Makes layer and input, and checks that the output is finite and not constant. */
    @Setup
    public void prepare() {
        device = Device.open();
        dev.chagres.Scope inputs = device.openScope();
        pass = Pass.training(device);
        ModelPlan plan = new ModelPlan();
        layer = new TransformerLayer(config(), plan);
        parameters = Parameters.allocate(device, plan, DType.BFLOAT16, 1);
        recipe.begin(parameters, pass);
        int[] lengths = new int[shape.batch()];
        Arrays.fill(lengths, shape.length());
        sequences = Sequences.packed(inputs, lengths);
        x = normal(inputs, 1);
        dy = normal(inputs, 2);
        run();
        float[] y = layer.forward(x, pass).toFloats(device.stream());
        double sum = 0;
        for (float value : y) {
            sum += Math.abs(value);
        }
        if (!(sum > 0) || Double.isInfinite(sum)) {
            throw new IllegalStateException("expected finite numbers other than 0, their absolute sum is " + sum);
        }
    }

    private TransformerLayerConfig config() {
        int headDim = (int) (shape.hidden() / shape.heads());
        return TransformerLayerConfig.encoder(
                        shape.hidden(), AttentionConfig.of(shape.heads(), headDim, AttentionMask.none()))
                .withMlp(MlpConfig.gelu(shape.hidden())
                        .withInner(shape.inner())
                        .withRecomputation(MlpConfig.Recomputation.NONE));
    }

    private Tensor normal(dev.chagres.Scope scope, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[Math.toIntExact(shape.tokens() * shape.hidden())];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        Tensor tensor = scope.tensor(DType.BFLOAT16, shape.tokens(), shape.hidden());
        tensor.set(device.stream(), values);
        return tensor;
    }

    /** A step of its own: gradients are written, not added up. */
    private Tensor run() {
        parameters.nextStep();
        pass.begin(sequences);
        layer.forward(x, pass);
        return layer.backward(dy, pass);
    }

    /** Waits, so that an enqueue never waits for room in the stream. */
    @Setup(Level.Invocation)
    public void idle() {
        device.stream().synchronize();
    }

    /** The host's time. */
    @Benchmark
    public Tensor enqueue() {
        return run();
    }

    /** The time until the device is done. */
    @Benchmark
    public Tensor untilIdle() {
        Tensor dx = run();
        device.stream().synchronize();
        return dx;
    }

    /** Closes what was opened. */
    @TearDown
    public void close() {
        pass.close();
        parameters.close();
        device.close();
    }
}
