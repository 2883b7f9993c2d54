package dev.chagres.internal.memory;

import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Device memory as a stack: allocation moves a pointer, {@link #rewind} moves it back.
 *
 * <p>Small and large tensors lie on stacks of their own. Until the first {@link #unite} each large tensor has a chunk of its
 * own size; otherwise each small one between them would waste the rest of a chunk.
 *
 * <p>Threading: the device's thread.
 */
public final class DeviceMemory {
    /** Alignment of every allocation: CUDA's own, and more than any vectorised access needs. */
    public static final long ALIGNMENT = 256;

    private static final long LARGEST_SMALL = 4L << 20;
    private static final long SMALL_CHUNK = 1L << 20;
    private static final long LATER_SMALL_CHUNK = 32L << 20;

    private final long largestSmall;
    private final ChunkStack small;
    private final ChunkStack large;
    private final MemoryReuse reuse = MemoryReuse.chosen();
    private final MemorySegment stream;
    private @Nullable SharedMemory shared;
    private long peak;
    private int holder;

    /**
     * Makes an empty stack on {@code device}.
     *
     * @param stream in whose order the memory is used
     */
    public DeviceMemory(DeviceState device, MemorySegment stream) {
        this.stream = stream;
        largestSmall = LARGEST_SMALL;
        small = new ChunkStack(device, SMALL_CHUNK, LATER_SMALL_CHUNK);
        large = new ChunkStack(device, 0, 0);
    }

    /**
     * Makes a stack over existing memory on {@code device}; it does not grow.
     *
     * @param stream in whose order the memory is used
     * @param address the first byte, aligned to {@value #ALIGNMENT}
     * @param release gives the memory back
     */
    public DeviceMemory(DeviceState device, MemorySegment stream, long address, long byteSize, Runnable release) {
        this.stream = stream;
        largestSmall = Long.MAX_VALUE;
        small = new ChunkStack(device, address, byteSize, release);
        large = new ChunkStack(device, 0, 0);
    }

    /** Returns the address of {@code byteSize} bytes; a size of 0 gets an address too. */
    public long allocate(long byteSize) {
        long size = Math.max(ALIGNMENT, aligned(byteSize));
        long address = (size <= largestSmall ? small : large).allocate(size, holder);
        peak = Math.max(peak, small.used() + large.used());
        if (reuse == MemoryReuse.POISONED) {
            MemoryReuse.poison(address, size, stream);
        }
        return address;
    }

    /** Returns the next multiple of the alignment; for sizes that have none, a multiple that no device has. */
    private static long aligned(long byteSize) {
        return byteSize > Long.MAX_VALUE - ALIGNMENT
                ? Long.MAX_VALUE & -ALIGNMENT
                : (byteSize + ALIGNMENT - 1) & -ALIGNMENT;
    }

    /** Returns the position of the top among small tensors, for {@link #rewind}. */
    public long markSmall() {
        return small.mark();
    }

    /** Returns the position of the top among large tensors, for {@link #rewind}. */
    public long markLarge() {
        return large.mark();
    }

    /** Moves the tops back. */
    public void rewind(long markSmall, long markLarge) {
        if (reuse == MemoryReuse.NEVER) {
            return;
        }
        if (reuse == MemoryReuse.POISONED) {
            small.poison(markSmall, stream);
            large.poison(markLarge, stream);
        }
        small.rewind(markSmall);
        large.rewind(markLarge);
    }

    /** Counts what is taken from CUDA from now on for the holder of this number. */
    public void countedAs(int newHolder) {
        holder = newHolder;
    }

    /** Replaces several chunks by one that holds the most that was in use. Nothing may be in use. */
    public void unite() {
        small.unite(holder);
        large.unite(holder);
    }

    /** Returns the bytes handed out now. */
    public long used() {
        return small.used() + large.used();
    }

    /** Returns the bytes handed out at most at one time. */
    public long peak() {
        return peak;
    }

    /** Returns the bytes taken from CUDA. */
    public long reserved() {
        return small.reserved() + large.reserved();
    }

    /** Lets others read the memory: {@link #free} then leaves it to the last of them. */
    public void share(SharedMemory newShared) {
        shared = newShared;
    }

    /** Frees every chunk, unless others read them; CUDA waits for the work that uses them. */
    public void free() {
        SharedMemory present = shared;
        if (present != null) {
            present.end();
        }
        small.free(present);
        large.free(present);
    }
}
