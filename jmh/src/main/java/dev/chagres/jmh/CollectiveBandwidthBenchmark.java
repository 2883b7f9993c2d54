package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.bindings.NativeLibraries;
import dev.chagres.nccl.CollectiveMemory;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.IntToDoubleFunction;
import org.jspecify.annotations.NullUnmarked;
import org.jspecify.annotations.Nullable;
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

    /** A rank that communicates a whole tensor, and its shard of one, in BFLOAT16. */
    private static final class BandwidthRank extends CollectiveRank {
        private final int rank;
        private final int ranks;
        /** Null if both are in ordinary device memory. */
        private final @Nullable CollectiveMemory window;

        private final Tensor whole;
        private final Tensor shard;
        /** The tensor of the collective that synchronizes devices. */
        private final Tensor one;

        BandwidthRank(int rank, int ranks, UniqueId id, long bytes, CollectiveBandwidthBenchmark.Memory memory) {
            super(rank, ranks, id);
            this.rank = rank;
            this.ranks = ranks;
            long part = bytes / ranks / DType.BFLOAT16.byteSize();
            if (part * ranks * DType.BFLOAT16.byteSize() != bytes) {
                throw new IllegalArgumentException(
                        "bytes: expected a multiple of 2 for each of " + ranks + " ranks, got " + bytes);
            }
            dev.chagres.Scope own = scope;
            if (memory == CollectiveBandwidthBenchmark.Memory.WINDOW) {
                long taken = CollectiveMemory.byteSizeOf(DType.BFLOAT16, part * ranks)
                        + CollectiveMemory.byteSizeOf(DType.BFLOAT16, part);
                CollectiveMemory allocated = communicator.allocate(taken, stream);
                window = allocated;
                own = allocated.scope();
            } else {
                window = null;
            }
            whole = own.tensor(DType.BFLOAT16, part * ranks);
            shard = own.tensor(DType.BFLOAT16, part);
            one = scope.tensor(DType.BFLOAT16, 1);
            one.set(stream, 1f);
        }

        /** Waits until the devices of all ranks have reached it. */
        void meet() {
            communicator.allReduce(one, one, Reduction.MAX, stream);
            finish();
        }

        /** Waits for the device by spinning: {@link #await} sleeps 50 us and more between looks in long waits. */
        void finish() {
            stream.synchronize();
        }

        void allReduce() {
            communicator.allReduce(whole, whole, Reduction.SUM, stream);
        }

        void allGather() {
            communicator.allGather(shard, whole, stream);
        }

        void reduceScatter() {
            communicator.reduceScatter(whole, shard, Reduction.SUM, stream);
        }

        /** Checks every element of each: part p of rank r's input is (r + 1) (p + 1); BFLOAT16 holds the sums exactly for up to 8 ranks. */
        void check() {
            int sum = ranks * (ranks + 1) / 2;
            fill(whole, ranks, part -> (rank + 1.0) * (part + 1));
            allReduce();
            expect("all-reduce", whole, ranks, part -> sum * (part + 1.0));
            fill(whole, ranks, part -> (rank + 1.0) * (part + 1));
            reduceScatter();
            expect("reduce-scatter", shard, 1, _ -> sum * (rank + 1.0));
            fill(shard, 1, _ -> rank + 1.0);
            allGather();
            expect("all-gather", whole, ranks, part -> part + 1.0);
        }

        private void fill(Tensor tensor, int parts, IntToDoubleFunction value) {
            try (Arena arena = Arena.ofConfined()) {
                tensor.copyFrom(stream, values(arena, tensor, parts, value));
                stream.synchronize();
            }
        }

        private void expect(String operation, Tensor tensor, int parts, IntToDoubleFunction value) {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment got = arena.allocate(tensor.byteSize(), Short.BYTES);
                tensor.copyTo(stream, got);
                stream.synchronize();
                long other = got.mismatch(values(arena, tensor, parts, value));
                if (other >= 0) {
                    throw new IllegalStateException(
                            operation + " on rank " + rank + ": another value than expected at byte " + other);
                }
            }
        }

        private static MemorySegment values(Arena arena, Tensor tensor, int parts, IntToDoubleFunction value) {
            MemorySegment all = arena.allocate(tensor.byteSize(), Short.BYTES);
            long each = tensor.byteSize() / parts;
            for (int part = 0; part < parts; part++) {
                MemorySegment one = all.asSlice(part * each, each);
                one.set(ValueLayout.JAVA_SHORT, 0, DType.toBfloat16((float) value.applyAsDouble(part)));
                for (long filled = Short.BYTES; filled < each; filled *= 2) {
                    MemorySegment.copy(one, 0, one, filled, Math.min(filled, each - filled));
                }
            }
            return all;
        }

        @Override
        public void close() {
            if (window != null) {
                window.close();
            }
            super.close();
        }
    }
}
