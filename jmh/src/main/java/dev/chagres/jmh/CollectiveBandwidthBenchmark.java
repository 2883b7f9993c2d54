package dev.chagres.jmh;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.nccl.UniqueId;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
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
 * How long does a collective of a given size take, and what is its bandwidth? In BFLOAT16, on ranks that are threads with a device each:
 * the time of {@value #CALLS} collectives in a row until rank 0's device is done, divided by their number. It begins after a collective of
 * one element that synchronizes all devices, and is measured inside each rank's loop, so that it includes neither the wake-up of threads
 * nor pauses of {@link dev.chagres.nccl.Communicator#synchronize}.
 *
 * <p>Printed after each iteration: the bus bandwidth, as NCCL's tests define it. It is {@code bytes F (N - 1) / N / time} on N ranks, where
 * F is 2 for an all-reduce, else 1, and {@code bytes} is the size of the whole tensor.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Warmup(iterations = 1, time = 500, timeUnit = TimeUnit.MILLISECONDS)
@Measurement(iterations = 3, time = 500, timeUnit = TimeUnit.MILLISECONDS)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class CollectiveBandwidthBenchmark {
    private static final int CALLS = 100;

    /** What is called. */
    public enum Collective {
        /** In place. */
        ALL_REDUCE(2, BandwidthRank::allReduce),
        /** Of shards, out of place. */
        ALL_GATHER(1, BandwidthRank::allGather),
        /** Into shards, out of place. */
        REDUCE_SCATTER(1, BandwidthRank::reduceScatter);

        private final int factor;
        private final Consumer<BandwidthRank> calls;

        Collective(int factor, Consumer<BandwidthRank> call) {
            this.factor = factor;
            calls = rank -> {
                for (int i = 0; i < CALLS; i++) {
                    call.accept(rank);
                }
            };
        }
    }

    /** Where tensors lie. */
    public enum Memory {
        /** In device memory that is not registered with NCCL. */
        DEVICE,
        /** In a window of {@link dev.chagres.nccl.CollectiveMemory}. */
        WINDOW
    }

    /** How many ranks: N, at most 8. */
    @Param({"2"})
    public int ranks;

    /** What is called. */
    @Param({"ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER"})
    public Collective collective;

    /** What an all-reduce sums, an all-gather writes, a reduce-scatter reads. */
    @Param({"8192", "1048576"})
    public long bytes;

    /** Where tensors lie. */
    @Param({"DEVICE"})
    public Memory memory;

    private RankThreads<BandwidthRank> threads;
    /** What the other ranks do. */
    private Consumer<BandwidthRank> round;

    private long nanos;
    private long calls;

    /** For JMH. */
    public CollectiveBandwidthBenchmark() {}

    /** Opens the ranks, which check every element of each collective. */
    @Setup
    public void open() {
        NativeLibraries.ensureLoaded();
        UniqueId id = UniqueId.create();
        threads = new RankThreads<>(ranks, rank -> new BandwidthRank(rank, ranks, id, bytes, memory));
        threads.once(BandwidthRank::check);
        round = rank -> {
            rank.meet();
            collective.calls.accept(rank);
        };
    }

    /** Lets the other ranks call, and synchronizes the devices. */
    @Setup(Level.Invocation)
    public void begin() {
        threads.begin(round);
        threads.own().meet();
    }

    /** What rank 0 calls, and its wait for its device. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void move() {
        long start = System.nanoTime();
        collective.calls.accept(threads.own());
        threads.own().finish();
        nanos += System.nanoTime() - start;
        calls += CALLS;
    }

    /** Waits for all devices. */
    @TearDown(Level.Invocation)
    public void end() {
        threads.end();
    }

    /** Prints the bus bandwidth. */
    @TearDown(Level.Iteration)
    public void print() {
        double seconds = nanos / 1e9 / calls;
        double bus = (double) bytes * collective.factor * (ranks - 1) / ranks / seconds / 1e9;
        System.out.printf(
                Locale.ROOT,
                "%s of %d bytes on %d ranks in %s: %.2f us, bus %.3f GB/s%n",
                collective,
                bytes,
                ranks,
                memory,
                seconds * 1e6,
                bus);
        nanos = 0;
        calls = 0;
    }

    /** Closes everything. */
    @TearDown
    public void close() throws InterruptedException {
        threads.close();
    }
}
