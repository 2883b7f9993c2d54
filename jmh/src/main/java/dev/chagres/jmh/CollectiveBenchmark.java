package dev.chagres.jmh;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.bindings.nccl.ncclUniqueId;
import dev.chagres.nccl.CallMode;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.Reduction;
import dev.chagres.nccl.UniqueId;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;
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

    /** A rank that sums one element: by the api, by the binding, and in C. */
    private static final class AllReduceRank extends CollectiveRank {
        private final Arena arena = Arena.ofConfined();
        private final CollectiveLoop loop;
        private final Tensor x;
        private final Tensor y;
        private final MemorySegment bare;

        /** Opens a second communicator for callers that bypass the api; {@code bareId} is its identifier of NCCL. */
        AllReduceRank(int rank, int ranks, UniqueId id, CommunicatorConfig config, MemorySegment bareId) {
            super(rank, ranks, id, config);
            loop = CollectiveLoop.compile(arena);
            x = scope.tensor(DType.FLOAT32, 1);
            y = scope.tensor(DType.FLOAT32, 1);
            x.set(stream, rank + 1f);
            stream.synchronize();
            MemorySegment out = arena.allocate(ValueLayout.ADDRESS);
            Status.nccl(Nccl.ncclCommInitRank(out, ranks, bareId, rank), "ncclCommInitRank");
            bare = out.get(ValueLayout.ADDRESS, 0);
        }

        void api(int times) {
            for (int i = 0; i < times; i++) {
                communicator.allReduce(x, y, Reduction.SUM, stream);
            }
        }

        void binding(int times) {
            for (int i = 0; i < times; i++) {
                Status.nccl(
                        Nccl.ncclAllReduce(
                                x.pointer(), y.pointer(), 1, Nccl.ncclFloat32(), Nccl.ncclSum(), bare, stream.handle()),
                        "ncclAllReduce");
            }
        }

        void inC(int times) {
            loop.allReduce(x, y, bare, stream, times);
        }

        /** Clears the previous sum. */
        void clear() {
            y.zero(stream);
        }

        /** Checks the sum of 1 to N. */
        void check() {
            float sum = communicator.ranks() * (communicator.ranks() + 1) / 2f;
            float got = y.toFloats(stream)[0];
            if (got != sum) {
                throw new IllegalStateException("expected the sum " + sum + ", got " + got);
            }
        }

        @Override
        public void close() {
            Status.nccl(Nccl.ncclCommDestroy(bare), "ncclCommDestroy");
            arena.close();
            super.close();
        }

        /** A loop in C that calls {@code ncclAllReduce}, compiled by {@code $CC}, or {@code cc}, when it is made: what a C program's calls cost. */
        private static final class CollectiveLoop {
            private static final String SOURCE = "collective_loop.c";
            private static final FunctionDescriptor DESCRIPTOR = FunctionDescriptor.of(
                    ValueLayout.JAVA_INT,
                    ValueLayout.ADDRESS,
                    ValueLayout.ADDRESS,
                    ValueLayout.ADDRESS,
                    ValueLayout.JAVA_LONG,
                    ValueLayout.JAVA_INT,
                    ValueLayout.JAVA_INT,
                    ValueLayout.ADDRESS,
                    ValueLayout.ADDRESS,
                    ValueLayout.JAVA_INT);

            private final MethodHandle loop;

            private CollectiveLoop(MethodHandle loop) {
                this.loop = loop;
            }

            /** Compiles and opens it; its code stays until {@code arena} is closed. */
            static CollectiveLoop compile(Arena arena) {
                try {
                    Path folder = Files.createTempDirectory("collective-loop");
                    Path source = folder.resolve(SOURCE);
                    Path library = folder.resolve("libcollective_loop.so");
                    try {
                        try (InputStream text = CollectiveLoop.class.getResourceAsStream(SOURCE)) {
                            Files.copy(Objects.requireNonNull(text, SOURCE), source);
                        }
                        run(System.getenv().getOrDefault("CC", "cc"), source, library);
                        MemorySegment function =
                                SymbolLookup.libraryLookup(library, arena).findOrThrow("collective_loop");
                        return new CollectiveLoop(Linker.nativeLinker().downcallHandle(function, DESCRIPTOR));
                    } finally {
                        Files.deleteIfExists(library);
                        Files.deleteIfExists(source);
                        Files.delete(folder);
                    }
                } catch (IOException failure) {
                    throw new UncheckedIOException("cannot compile " + SOURCE, failure);
                }
            }

            private static void run(String compiler, Path source, Path library) throws IOException {
                Process process = new ProcessBuilder(
                                compiler, "-O2", "-shared", "-fPIC", "-o", library.toString(), source.toString())
                        .inheritIO()
                        .start();
                try {
                    int status = process.waitFor();
                    if (status != 0) {
                        throw new IOException(compiler + " ended with " + status);
                    }
                } catch (InterruptedException interrupted) {
                    process.destroy();
                    Thread.currentThread().interrupt();
                    throw new IOException("interrupted while " + compiler + " ran", interrupted);
                }
            }

            /** Enqueues {@code times} sums of {@code x}, FLOAT32, into {@code y}. */
            void allReduce(Tensor x, Tensor y, MemorySegment communicator, Stream stream, int times) {
                int status;
                try {
                    status = (int) loop.invokeExact(
                            Nccl.ncclAllReduce$address(),
                            x.pointer(),
                            y.pointer(),
                            x.count(),
                            Nccl.ncclFloat32(),
                            Nccl.ncclSum(),
                            communicator,
                            stream.handle(),
                            times);
                } catch (RuntimeException | Error failure) {
                    throw failure;
                } catch (Throwable impossible) {
                    throw new AssertionError(impossible);
                }
                Status.nccl(status, "ncclAllReduce");
            }
        }
    }
}
