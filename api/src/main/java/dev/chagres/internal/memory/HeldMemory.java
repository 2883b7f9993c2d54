package dev.chagres.internal.memory;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.TreeSet;
import java.util.function.Function;
import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.EventType;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/**
 * Allocates, counts and frees the memory of one device; memory that a graph may use is freed once that graph is closed.
 *
 * <p>Threading: the device's thread.
 */
final class HeldMemory {
    private static final int HOLDERS = 16;

    /** Says who holds the bytes of each holder, and what would help. */
    private Function<long[], String> describe = bytes -> "";

    private final MemorySegment out;
    private final HostWaits waits;
    private final GraphMemory graphs;
    private final Runnable beforeFree;
    private long bytes;
    private long peak;
    /** By holder; so many as there may be, since the names lie above this package. */
    private final long[] byHolder = new long[HOLDERS];

    private final long[] atPeak = new long[HOLDERS];

    /**
     * Holds nothing yet.
     *
     * @param out scratch for a pointer
     * @param waits is notified of calls that may wait for the device
     * @param beforeFree waits for other threads that read the memory
     */
    HeldMemory(MemorySegment out, HostWaits waits, GraphMemory graphs, Runnable beforeFree) {
        this.out = out;
        this.waits = waits;
        this.graphs = graphs;
        this.beforeFree = beforeFree;
    }

    /** Allocates device memory for one of the holders. */
    MemorySegment malloc(long byteSize, int holder) {
        waits.begin();
        int status = CudaRuntime.cudaMalloc(out, byteSize);
        waits.end();
        if (status == CudaRuntime.cudaErrorMemoryAllocation()) {
            throw Status.outOfMemory(status, "cudaMalloc", byteSize, bytes, holders());
        }
        Status.cuda(status, "cudaMalloc");
        hold(byteSize, holder);
        return out.get(ValueLayout.ADDRESS, 0);
    }

    /** Sets what errors say of who holds memory. */
    void describing(Function<long[], String> newDescription) {
        describe = newDescription;
    }

    /** Returns what errors say of who holds memory. */
    String holders() {
        return describe.apply(byHolder);
    }

    /** Counts allocated device memory. */
    void hold(long byteSize, int holder) {
        bytes += byteSize;
        byHolder[holder] += byteSize;
        if (bytes > peak) {
            peak = bytes;
            System.arraycopy(byHolder, 0, atPeak, 0, HOLDERS);
        }
        if (FlightRecorder.isInitialized()) { // the class of an event opens the recorder
            DeviceAllocation.emit(byteSize, bytes);
        }
    }

    /** Frees memory: at once, or when the graphs that may use it are closed. */
    void free(MemorySegment memory, long byteSize, int holder) {
        free(byteSize, holder, () -> cudaFree(memory));
    }

    /** Frees {@code byteSize} bytes by {@code free}: at once, or when the graphs that may use them are closed. */
    void free(long byteSize, int holder, Runnable free) {
        Runnable counted = () -> {
            beforeFree.run();
            free.run();
            bytes -= byteSize;
            byHolder[holder] -= byteSize;
        };
        if (!graphs.keep(counted)) {
            counted.run();
        }
    }

    /** Frees memory that no living graph uses at once. */
    void freeAtOnce(MemorySegment memory, long byteSize, int holder) {
        beforeFree.run();
        cudaFree(memory);
        bytes -= byteSize;
        byHolder[holder] -= byteSize;
    }

    private void cudaFree(MemorySegment memory) {
        waits.begin(); // cudaFree waits for all work.
        int status = CudaRuntime.cudaFree(memory);
        waits.end();
        Status.cuda(status, "cudaFree");
    }

    /** Returns the bytes that are taken now. */
    long bytes() {
        return bytes;
    }

    /** Returns the bytes of each holder now. */
    long[] byHolder() {
        return byHolder.clone();
    }

    /** Returns the bytes of each holder when the most were taken. */
    long[] byHolderAtPeak() {
        return atPeak.clone();
    }

    /** Returns the most bytes that were taken at one time. */
    long peak() {
        return peak;
    }

    /** An event of JDK Flight Recorder: memory was taken from CUDA, which steps do once. */
    @Name("dev.chagres.DeviceAllocation")
    @Label("Device allocation")
    @Description("Memory was taken from CUDA or NCCL")
    @Category("Chagres")
    @StackTrace
    static final class DeviceAllocation extends Event {
        private static final EventType TYPE = EventType.getEventType(DeviceAllocation.class);

        @Label("Bytes")
        @DataAmount
        long bytes;

        @Label("Held")
        @Description("Bytes that the device's scopes and workspaces hold then")
        @DataAmount
        long held;

        static void emit(long bytes, long held) {
            if (TYPE.isEnabled()) {
                var event = new DeviceAllocation();
                event.bytes = bytes;
                event.held = held;
                event.commit();
            }
        }
    }

    /**
     * Memory that graphs of one device may still use. A graph has addresses in it, so memory that is freed while graphs live is kept
     * until every graph that was captured before is closed.
     */
    static final class GraphMemory {
        private record Kept(Runnable free, long newestUser) {}

        private final TreeSet<Long> living = new TreeSet<>();
        private final Deque<Kept> kept = new ArrayDeque<>();
        private long newest;
        private int capturing;

        /** Begins a capture and returns the number of its graph. */
        long begin() {
            capturing++;
            living.add(++newest);
            return newest;
        }

        void endCapture() {
            capturing--;
        }

        boolean isCapturing() {
            return capturing != 0;
        }

        /** Keeps {@code free} for later and returns true where a graph may use the memory; else returns false. */
        boolean keep(Runnable free) {
            if (living.isEmpty()) {
                return false;
            }
            kept.add(new Kept(free, newest));
            return true;
        }

        /** Frees what no other graph than this one could use. */
        void close(long graph) {
            living.remove(graph);
            while (!kept.isEmpty() && (living.isEmpty() || living.first() > kept.getFirst().newestUser)) {
                kept.removeFirst().free.run();
            }
        }
    }
}
