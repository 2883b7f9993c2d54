package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.FlightRecorder;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What does the {@link FlightRecorder} add to the cost of a collective? Compare a recorder of 10,000 calls with one of none; there are one
 * rank and one element, so that the transfer itself costs almost nothing.
 */
@NullUnmarked
@State(org.openjdk.jmh.annotations.Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class FlightRecorderBenchmark {
    private static final String CALLS = "chagres.collective.recorder.calls";

    /** How many calls the recorder keeps. */
    @Param({"0", "10000"})
    public int calls;

    private Device device;
    private Stream stream;
    private Tensor x;
    private Communicator communicator;

    /** For JMH. */
    public FlightRecorderBenchmark() {}

    /** Opens a communicator of one rank, and checks that its calls are kept. */
    @Setup
    public void open() {
        System.setProperty(CALLS, Integer.toString(calls));
        device = Device.open();
        stream = device.stream();
        Scope scope = device.openScope();
        x = scope.tensor(DType.FLOAT32, 1);
        x.set(stream, 3f);
        communicator = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
        allReduce();
        int kept = FlightRecorder.of(communicator).calls().size();
        if (kept != Math.min(calls, 1) || x.toFloats(stream)[0] != 3f) {
            throw new IllegalStateException("expected the sum 3 and " + Math.min(calls, 1) + " call, got "
                    + x.toFloats(stream)[0] + " and " + kept);
        }
    }

    /** Closes everything. */
    @TearDown
    public void close() {
        stream.synchronize();
        communicator.close();
        device.close();
        System.clearProperty(CALLS);
    }

    /** {@link Communicator#allReduce}. */
    @Benchmark
    public void allReduce() {
        communicator.allReduce(x, x, Reduction.SUM, stream);
    }
}
