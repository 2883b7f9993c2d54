package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cuda.CudaRuntime;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;

/**
 * Page-locked memory of the host in which tensors lie: kernels and copies of the device reach it, slowly, at the same addresses.
 *
 * <p>Threading: the device's thread, but for {@link #holds}, which any thread may call.
 */
public final class PinnedMemory {
    private static final int PORTABLE_AND_MAPPED = 3;
    private static final int HOST_TO_DEVICE = 1;
    private static final int DEVICE_TO_HOST = 2;
    /** The bytes of each allocation that was not freed, by address. */
    private static final ConcurrentSkipListMap<Long, Long> HELD = new ConcurrentSkipListMap<>();

    private PinnedMemory() {}

    /**
     * Allocates a stack of {@code byteSize} bytes, used in the order of {@code stream}. Whatever copies on other streams must be done before it
     * is freed.
     *
     * @throws dev.chagres.bindings.CudaException when the host does not have that many
     */
    public static DeviceMemory allocate(DeviceState device, MemorySegment stream, long byteSize) {
        device.ensureNotCapturing("allocate");
        int status = CudaRuntime.cudaHostAlloc(device.out(), byteSize, PORTABLE_AND_MAPPED);
        if (status == CudaRuntime.cudaErrorMemoryAllocation()) {
            throw Status.outOfHostMemory(status, "cudaHostAlloc", byteSize);
        }
        Status.cuda(status, "cudaHostAlloc");
        MemorySegment memory = device.out().get(ValueLayout.ADDRESS, 0);
        HELD.put(memory.address(), byteSize);
        return new DeviceMemory(device, stream, memory.address(), byteSize, () -> {
            HELD.remove(memory.address());
            Status.cuda(CudaRuntime.cudaFreeHost(memory), "cudaFreeHost");
        });
    }

    /** Returns whether an address lies in such memory. */
    public static boolean holds(long address) {
        Map.Entry<Long, Long> below = HELD.floorEntry(address);
        return below != null && address < below.getKey() + below.getValue();
    }

    /** Enqueues a copy from such memory to the device's. */
    public static void toDevice(long target, long source, long bytes, MemorySegment stream) {
        Status.cuda(AddressCalls.cudaMemcpyAsync(target, source, bytes, HOST_TO_DEVICE, stream), "cudaMemcpyAsync");
    }

    /** Enqueues a copy from the device's memory to such memory. */
    public static void toHost(long target, long source, long bytes, MemorySegment stream) {
        Status.cuda(AddressCalls.cudaMemcpyAsync(target, source, bytes, DEVICE_TO_HOST, stream), "cudaMemcpyAsync");
    }
}
