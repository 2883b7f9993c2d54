package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.CaptureException;
import dev.chagres.bindings.Status;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * The numbers that one graph reads and the host changes from launch to launch. They lie side by side in a block of the device's
 * memory, which kernels write before each launch, 2 KiB each; nodes of the graph copy them from there to where kernels read them. So a
 * launch cannot change the numbers of one that still runs, nor those of another graph or of steps that are enqueued.
 *
 * <p>Threading: the device's thread.
 */
final class LaunchNumbers implements AutoCloseable {
    private static final long BYTES = 16 << 10;
    private static final long ALIGNMENT = 16;
    private static final int DEVICE_TO_DEVICE = 3;

    /** The place of a work's numbers in the block. */
    private record Place(StepWork work, long offset, long byteSize) {}

    private final DeviceState device;
    private final MemorySegment block;
    private final Arena arena;
    private final MemorySegment host;
    private final List<Place> places = new ArrayList<>();
    private long used;

    /** Allocates the block before the capture, during which CUDA allocates no memory. */
    LaunchNumbers(DeviceState device) {
        this.device = device;
        block = device.malloc(BYTES); // First: if it fails, there is nothing to close.
        arena = Arena.ofShared();
        host = arena.allocate(BYTES, ALIGNMENT);
    }

    /** Returns the block's address; before the capture there is nothing in it. */
    long address() {
        return block.address();
    }

    /**
     * Reserves a place for the numbers of {@code work}, and captures the copy to where kernels read them.
     *
     * @throws CaptureException when there is no room
     */
    void add(StepWork work, MemorySegment stream) {
        long bytes = work.byteSize();
        if (bytes == 0) {
            return;
        }
        if (bytes > BYTES - used) {
            throw new CaptureException("capture: expected at most " + BYTES
                    + " bytes of rates and other numbers that change from launch to launch, got " + (used + bytes)
                    + "; capture fewer micro-batches, or an optimizer of fewer groups");
        }
        Status.cuda(
                AddressCalls.cudaMemcpyAsync(work.address(), block.address() + used, bytes, DEVICE_TO_DEVICE, stream),
                "cudaMemcpyAsync");
        places.add(new Place(work, used, bytes));
        used += bytes + ALIGNMENT - 1 & -ALIGNMENT;
    }

    /** Enqueues the numbers of the coming launch, by a kernel for each 2 KiB. */
    void write(MemorySegment stream) {
        if (used == 0) {
            return;
        }
        for (int i = 0; i < places.size(); i++) {
            Place place = places.get(i);
            MemorySegment.copy(place.work.numbers(), 0, host, place.offset, place.byteSize);
        }
        Status.te(
                AddressCalls.te_copy_host_to_device_via_kernel(host, block.address(), used, stream),
                "te_copy_host_to_device_via_kernel");
    }

    /** Frees the block at once, whatever other graphs live: only its own graph reads it, and that is closed. */
    @Override
    public void close() {
        arena.close();
        device.freeAtOnce(block, BYTES);
    }
}
