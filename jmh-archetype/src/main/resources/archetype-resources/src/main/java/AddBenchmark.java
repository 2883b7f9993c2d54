package ${package};

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.jmh.states.BenchmarkDevice;
import dev.chagres.ops.Elementwise;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.Warmup;

/** What does a sum of a million elements cost? */
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 1, time = 200, timeUnit = TimeUnit.MILLISECONDS)
@Measurement(iterations = 3, time = 200, timeUnit = TimeUnit.MILLISECONDS)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class AddBenchmark {
    private BenchmarkDevice device;
    private Tensor x;
    private Tensor y;

    /** Makes the tensors, and checks a result before anything is timed. */
    @Setup
    public void prepare(BenchmarkDevice state) {
        device = state; // JMH would give the methods below another one
        Tensor few = state.empty(DType.FLOAT32, 3);
        state.fill(few, 1, 2, 3);
        Elementwise.add(few, few, few, state.stream());
        float[] sums = few.toFloats(state.stream());
        System.out.println(Arrays.toString(sums));
        if (!Arrays.equals(sums, new float[] {2, 4, 6})) {
            throw new IllegalStateException("a wrong sum");
        }
        x = state.normal(DType.BFLOAT16, 1_000, 1_000);
        y = state.zeros(DType.BFLOAT16, 1_000, 1_000);
    }

    /** The time until the device is done. */
    @Benchmark
    public void untilIdle() {
        device.untilIdle(() -> Elementwise.add(x, x, y, device.stream()));
    }

    /** The device's own time stands in the column that -prof adds. */
    @Benchmark
    public float onDevice() {
        return device.deviceMillis(() -> Elementwise.add(x, x, y, device.stream()));
    }
}
