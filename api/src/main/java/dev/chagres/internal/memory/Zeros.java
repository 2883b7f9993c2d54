package dev.chagres.internal.memory;

import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.MemorySegment;

/**
 * Fills device memory with zeros: by {@code cudaMemsetAsync}, or, while a stream captures, up to 1 MiB by kernels. A node of a graph
 * that fills memory costs the host a microsecond at each launch, one that runs a kernel next to nothing. Beyond 1 MiB the kernel would
 * cost the device more than that.
 *
 * <p>Threading: the device's thread.
 */
public final class Zeros {
    /** What {@code nvte_memset} fills by a kernel; more it fills by {@code cudaMemsetAsync}. */
    private static final long SMALL_BYTES = 4096;
    /** What is filled by a kernel in a capture. */
    private static final long MOST_BYTES = 1 << 20;
    /** What the larger kernel fills is a multiple of this. One thread of eight writes; the others are there for sums. */
    private static final long PACK_BYTES = 16;

    private Zeros() {}

    /** Enqueues zeros in {@code byteSize} bytes from {@code address} on. */
    public static void enqueue(DeviceState device, long address, long byteSize, MemorySegment stream) {
        if (device.capture() == null || byteSize > MOST_BYTES) {
            Status.cuda(AddressCalls.cudaMemsetAsync(address, 0, byteSize, stream), "cudaMemsetAsync");
        } else if (byteSize <= SMALL_BYTES) {
            small(address, byteSize, stream);
        } else {
            long head = -address & (Float.BYTES - 1);
            long packs = (byteSize - head) / PACK_BYTES;
            long end = head + packs * PACK_BYTES;
            small(address, head, stream);
            packs(address + head, packs, stream);
            small(address + end, byteSize - end, stream);
        }
    }

    /** Enqueues each of the kernels once, so that all are loaded when a capture begins; {@code address} has room for a pack. */
    static void load(long address, MemorySegment stream) {
        for (long bytes = PACK_BYTES; bytes > 0; bytes /= 2) { // nvte_memset has one for each width.
            small(address, bytes, stream);
        }
        packs(address, 1, stream);
    }

    private static void small(long address, long byteSize, MemorySegment stream) {
        if (byteSize > 0) {
            Status.te(TransformerEngine.te_memset(MemorySegment.ofAddress(address), 0, byteSize, stream), "te_memset");
        }
    }

    /** By a sum over no rows, which reads nothing and writes zeros. */
    private static void packs(long address, long packs, MemorySegment stream) {
        long floats = packs * (PACK_BYTES / Float.BYTES);
        Status.ops(Ops.ops_row_sum(0, address, 0, 0, floats, TransformerEngine.kNVTEFloat32(), stream), "ops_row_sum");
    }
}
