package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.NullUnmarked;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * What does enqueuing a collective cost through {@link Communicator}, beside the bare binding? One rank and one element, so that the
 * transfer itself costs next to nothing.
 */
@NullUnmarked
@State(org.openjdk.jmh.annotations.Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class CollectiveBenchmark {
    private Device device;
    private Stream stream;
    private Scope scope;
    private Tensor x;
    private Tensor y;
    private Communicator communicator;
    private Arena arena;
    private MemorySegment bare;

    /** For JMH. */
    public CollectiveBenchmark() {}

    /** Opens two communicators of one rank, and checks that both ways move the element. */
    @Setup
    public void open() {
        device = Device.open();
        stream = device.stream();
        scope = device.openScope();
        x = scope.tensor(DType.FLOAT32, 1);
        y = scope.tensor(DType.FLOAT32, 1);
        communicator = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
        arena = Arena.ofConfined();
        MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
        Status.nccl(Nccl.ncclCommInitAll(out, 1, MemorySegment.NULL), "ncclCommInitAll");
        bare = out.get(ValueLayout.ADDRESS, 0);
        x.set(stream, 3f);
        y.zero(stream);
        api();
        check();
        y.zero(stream);
        binding();
        check();
    }

    private void check() {
        if (y.toFloats(stream)[0] != 3f) {
            throw new IllegalStateException("expected the sum 3, got " + y.toFloats(stream)[0]);
        }
    }

    /** Closes everything. */
    @TearDown
    public void close() {
        stream.synchronize();
        Status.nccl(Nccl.ncclCommDestroy(bare), "ncclCommDestroy");
        arena.close();
        communicator.close();
        device.close();
    }

    /** {@link Communicator#allReduce}, every check included. */
    @Benchmark
    public void api() {
        communicator.allReduce(x, y, Reduction.SUM, stream);
    }

    /** {@code ncclAllReduce} as jextract has it. */
    @Benchmark
    public void binding() {
        Status.nccl(
                Nccl.ncclAllReduce(
                        x.pointer(), y.pointer(), 1, Nccl.ncclFloat32(), Nccl.ncclSum(), bare, stream.handle()),
                "ncclAllReduce");
    }
}
