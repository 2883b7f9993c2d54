package dev.chagres.jmh;

import dev.chagres.Tensor;
import dev.chagres.jmh.states.LayerShape;
import dev.chagres.ops.ProductPlan;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What do forward and backward of one TransformerLayer cost, with weights in BFLOAT16 and products by the recipe, in time of the host and
 * of the device?
 *
 * <p>{@code enqueue} times the host until the last call has returned, beginning with an idle stream; {@code untilIdle} until
 * the device is done; {@code backToBack} twenty steps enqueued in a row until the device is done, divided by twenty. On the
 * reference all are the same: it computes before it returns.
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

    /** How the sequences are described to attention. */
    @Param({"DENSE"})
    public LayerLayout layout;

    /** How cuBLASLt's kernels of its products are chosen. */
    @Param({"MEASURED"})
    public ProductPlan productPlan;

    private LayerStep step;

    /** Makes layer and input, and checks the output. */
    @Setup
    public void prepare() {
        step = new LayerStep(shape, recipe, layout, productPlan);
    }

    /** Waits, so that an enqueue never waits for room in the stream. */
    @Setup(Level.Invocation)
    public void idle() {
        step.stream().synchronize();
    }

    /** The host's time. */
    @Benchmark
    public Tensor enqueue() {
        return step.run();
    }

    /** The time until the device is done. */
    @Benchmark
    public Tensor untilIdle() {
        Tensor dx = step.run();
        step.stream().synchronize();
        return dx;
    }

    /** The time of several steps until the device is done, divided by their number. */
    @Benchmark
    @OperationsPerInvocation(LayerStep.BACK_TO_BACK)
    public LayerStep backToBack() {
        for (int i = 0; i < LayerStep.BACK_TO_BACK; i++) {
            step.run();
        }
        step.stream().synchronize();
        return step;
    }

    /** Closes what was opened. */
    @TearDown
    public void close() {
        step.close();
    }
}
