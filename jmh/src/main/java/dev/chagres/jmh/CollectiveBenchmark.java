package dev.chagres.jmh;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.nccl.ncclUniqueId;
import dev.chagres.nccl.CallMode;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
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
 * What does enqueuing a collective through {@link Communicator} cost rank 0, compared with the binding and a loop in C? {@value #CALLS}
 * all-reduces of one element are enqueued while the devices of all ranks are idle; the wait for them is not timed. With one rank this is
 * the cost of the call, with several also that of their threads waiting for each other. On the reference a call returns when the sum is
 * computed.
 */
@NullUnmarked
@State(Scope.Thread)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.NANOSECONDS)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@Fork(value = 1, jvmArgsAppend = "--enable-native-access=ALL-UNNAMED")
public class CollectiveBenchmark {
    /** Fewer than the launches that CUDA queues before it blocks. */
    private static final int CALLS = 200;

    /** Who calls NCCL. */
    public enum Caller {
        /** {@link Communicator#allReduce}, every check included. */
        API(rank -> rank.api(CALLS)),
        /** {@code ncclAllReduce} as jextract has it. */
        BINDING(rank -> rank.binding(CALLS)),
        /** {@code ncclAllReduce} in a loop in C. */
        C(rank -> rank.inC(CALLS));

        private final Consumer<AllReduceRank> calls;

        Caller(Consumer<AllReduceRank> calls) {
            this.calls = calls;
        }
    }

    /** How many ranks, threads with a device each. */
    @Param({"1"})
    public int ranks;

    /** Who calls NCCL. */
    @Param({"API", "BINDING", "C"})
    public Caller caller;

    /** Whether the api's calls are polled; those of the binding and of C never are. A polled call has returned when it is enqueued, too. */
    @Param({"BLOCKING"})
    public CallMode calls;

    private RankThreads<AllReduceRank> threads;

    /** For JMH. */
    public CollectiveBenchmark() {}

    /** Opens two communicators of the ranks, and checks that each caller gets the sum. */
    @Setup
    public void open() {
        NativeLibraries.ensureLoaded();
        UniqueId id = UniqueId.create();
        MemorySegment bareId = ncclUniqueId.allocate(Arena.ofAuto());
        Status.nccl(Nccl.ncclGetUniqueId(bareId), "ncclGetUniqueId");
        CommunicatorConfig config = CommunicatorConfig.standard().withCallMode(calls);
        threads = new RankThreads<>(ranks, rank -> new AllReduceRank(rank, ranks, id, config, bareId));
        for (Caller each : Caller.values()) {
            threads.once(AllReduceRank::clear);
            threads.once(each.calls);
            threads.once(AllReduceRank::check);
        }
    }

    /** Lets the other ranks call. */
    @Setup(Level.Invocation)
    public void begin() {
        threads.begin(caller.calls);
    }

    /** What rank 0 calls. */
    @Benchmark
    @OperationsPerInvocation(CALLS)
    public void enqueue() {
        caller.calls.accept(threads.own());
    }

    /** Waits for all devices. */
    @TearDown(Level.Invocation)
    public void end() {
        threads.end();
    }

    /** Closes everything. */
    @TearDown
    public void close() throws InterruptedException {
        threads.close();
    }
}
