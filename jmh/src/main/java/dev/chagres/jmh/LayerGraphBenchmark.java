package dev.chagres.jmh;

import dev.chagres.Graph;
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
 * What does the graph of one TransformerLayer's forward and backward cost, in BFLOAT16, in time of the host and of the device?
 *
 * <p>{@code launch} times the host until the launch has returned, beginning with an idle stream; {@code untilIdle} until the device is
 * done; {@code backToBack} twenty launches in a row until the device is done, divided by twenty. On the reference all are the same: it
 * computes before it returns.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 3, time = 2)
@Measurement(iterations = 5, time = 2)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class LayerGraphBenchmark {
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
    private Graph graph;

    /** Makes layer and input, checks the output, and captures a step. */
    @Setup
    public void prepare() {
        step = new LayerStep(shape, recipe, layout, productPlan);
        step.run();
        graph = step.stream().capture(step::run);
    }

    /** Waits, so that an enqueue never waits for room in the stream. */
    @Setup(Level.Invocation)
    public void idle() {
        step.stream().synchronize();
    }

    /** The host's time. */
    @Benchmark
    public Graph launch() {
        graph.launch();
        return graph;
    }

    /** The time until the device is done. */
    @Benchmark
    public Graph untilIdle() {
        graph.launch();
        step.stream().synchronize();
        return graph;
    }

    /** The time of several launches until the device is done, divided by their number. */
    @Benchmark
    @OperationsPerInvocation(LayerStep.BACK_TO_BACK)
    public Graph backToBack() {
        for (int i = 0; i < LayerStep.BACK_TO_BACK; i++) {
            graph.launch();
        }
        step.stream().synchronize();
        return graph;
    }

    /** Closes what was opened. */
    @TearDown
    public void close() {
        graph.close();
        step.close();
    }
}
