package dev.chagres.internal.memory;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Allocates, counts and frees the memory of one device; memory that a graph may use is freed once that graph is closed.
 *
 * <p>Threading: the device's thread.
 */
final class HeldMemory {
    private final MemorySegment out;
    private final HostWaits waits;
    private final GraphMemory graphs;
    private long bytes;
    private long peak;

    /** {@code out}: scratch for a pointer; {@code waits} is notified of calls that may wait for the device. */
    HeldMemory(MemorySegment out, HostWaits waits, GraphMemory graphs) {
        this.out = out;
        this.waits = waits;
        this.graphs = graphs;
    }

    /** Allocates device memory. */
    MemorySegment malloc(long byteSize) {
        waits.begin();
        int status = CudaRuntime.cudaMalloc(out, byteSize);
        waits.end();
        if (status == CudaRuntime.cudaErrorMemoryAllocation()) {
            throw Status.outOfMemory(status, "cudaMalloc", byteSize, bytes);
        }
        Status.cuda(status, "cudaMalloc");
        hold(byteSize);
        return out.get(ValueLayout.ADDRESS, 0);
    }

    /** Counts allocated device memory. */
    void hold(long byteSize) {
        bytes += byteSize;
        peak = Math.max(peak, bytes);
    }

    /** Frees memory: at once, or when the graphs that may use it are closed. */
    void free(MemorySegment memory, long byteSize) {
        free(byteSize, () -> cudaFree(memory));
    }

    /** Frees {@code byteSize} bytes by {@code free}: at once, or when the graphs that may use them are closed. */
    void free(long byteSize, Runnable free) {
        Runnable counted = () -> {
            free.run();
            bytes -= byteSize;
        };
        if (!graphs.keep(counted)) {
            counted.run();
        }
    }

    /** Frees memory that no living graph uses at once. */
    void freeAtOnce(MemorySegment memory, long byteSize) {
        cudaFree(memory);
        bytes -= byteSize;
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

    /** Returns the most bytes that were taken at one time. */
    long peak() {
        return peak;
    }
}
