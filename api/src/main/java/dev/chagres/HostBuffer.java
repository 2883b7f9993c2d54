package dev.chagres;

import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.jspecify.annotations.Nullable;

/**
 * Host memory for copies: <em>pinned</em>, which the device reads asynchronously, or <em>pageable</em>, for which a copy is done when the
 * call returns.
 *
 * <p>Threading: one thread at a time, any thread, for the contents; the device's thread for opening and closing.
 */
public final class HostBuffer implements AutoCloseable {
    private static final int PORTABLE = 1;

    private final Arena arena = Arena.ofShared();
    private final DeviceState device;
    private final MemorySegment segment;
    private final boolean pinned;
    private final Leaks.@Nullable Trace trace;
    private boolean closed;

    private HostBuffer(DeviceState device, long byteSize, boolean pinned) {
        if (byteSize < 0) {
            throw new IllegalArgumentException("byteSize: expected no negative size, got " + byteSize);
        }
        device.ensureCurrent();
        this.device = device;
        this.pinned = pinned;
        if (pinned) {
            device.ensureThreadNotCapturing("pinned");
            int status = CudaRuntime.cudaHostAlloc(device.out(), Math.max(1, byteSize), PORTABLE);
            if (status == CudaRuntime.cudaErrorMemoryAllocation()) {
                throw Status.outOfHostMemory(status, "cudaHostAlloc", byteSize);
            }
            Status.cuda(status, "cudaHostAlloc");
            segment = device.out().get(ValueLayout.ADDRESS, 0).reinterpret(byteSize, arena, null);
        } else {
            segment = pageable(byteSize);
        }
        trace = Leaks.opened((pinned ? "pinned" : "pageable") + " host buffer of " + byteSize + " bytes");
    }

    private MemorySegment pageable(long byteSize) {
        try {
            return arena.allocate(byteSize, 64);
        } catch (OutOfMemoryError e) {
            arena.close();
            throw new IllegalArgumentException(
                    "byteSize: expected no more bytes than the host has free, got " + byteSize, e);
        }
    }

    /**
     * Opens {@code byteSize} bytes of page-locked memory.
     *
     * @throws IllegalArgumentException when {@code byteSize} is negative
     * @throws IllegalStateException while a stream of one of the thread's devices captures
     * @throws dev.chagres.bindings.CudaException when the host does not have that many
     */
    public static HostBuffer pinned(Device device, long byteSize) {
        return new HostBuffer(Given.given("device", device).state(), byteSize, true);
    }

    /**
     * Opens {@code byteSize} bytes of ordinary memory.
     *
     * @throws IllegalArgumentException when {@code byteSize} is negative, or the host does not have that many
     */
    public static HostBuffer pageable(Device device, long byteSize) {
        return new HostBuffer(Given.given("device", device).state(), byteSize, false);
    }

    /**
     * Returns the memory.
     *
     * @throws IllegalStateException after {@link #close()}
     */
    public MemorySegment segment() {
        if (closed) {
            throw new IllegalStateException("host buffer is closed");
        }
        return segment;
    }

    /** Frees the memory; copies from and to it must be done. A second call does nothing. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        if (!device.isClosed()) {
            device.ensureCurrent();
            if (pinned) {
                device.ensureThreadNotCapturing("close");
            }
        }
        MemorySegment address = MemorySegment.ofAddress(segment.address());
        // Throws while a call on another thread still uses the memory; the buffer then stays open.
        arena.close();
        closed = true;
        Leaks.closed(trace);
        if (pinned) {
            Status.cuda(CudaRuntime.cudaFreeHost(address), "cudaFreeHost");
        }
    }
}
