package dev.chagres.internal.memory;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.function.Function;

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
        DeviceAllocation.emit(byteSize, bytes);
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
}
