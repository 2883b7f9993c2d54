package dev.chagres.internal.memory;

import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A stack over chunks from {@code cudaMalloc}, or over one that was allocated elsewhere. An allocation that does not fit into the rest of a
 * chunk begins the next one; a program that repeats its allocations reaches a steady state in which CUDA is not called at all, and
 * addresses repeat.
 *
 * <p>Threading: the device's thread.
 */
final class ChunkStack {
    private static final int OFFSET_BITS = 48;
    private static final long UNITED_STEP = 2L << 20;

    private static final class Chunk {
        private final long address;
        private final long byteSize;
        private final int holder;
        /** Bytes in use when the stack moved on to the next chunk. */
        private long filled;

        private Chunk(long address, long byteSize, int holder) {
            this.address = address;
            this.byteSize = byteSize;
            this.holder = holder;
        }
    }

    private final DeviceState device;
    /** Frees the only chunk; null if the stack allocates chunks itself. */
    private final @Nullable Runnable release;

    private final long firstChunk;
    private final long laterChunk;
    private final List<Chunk> chunks = new ArrayList<>();
    private int chunk;
    private long offset;
    private long usedBefore;
    private long reserved;
    private long peak;

    /**
     * Makes an empty stack. Its first chunk has at least {@code firstChunk} bytes; each later one a
     * quarter of what there is already, up to {@code laterChunk}.
     */
    ChunkStack(DeviceState device, long firstChunk, long laterChunk) {
        this.device = device;
        this.firstChunk = firstChunk;
        this.laterChunk = laterChunk;
        release = null;
    }

    /** Makes a stack of {@code byteSize} bytes from {@code address} on, which {@code release} frees. */
    ChunkStack(DeviceState device, long address, long byteSize, Runnable release) {
        this.device = device;
        this.release = release;
        firstChunk = 0;
        laterChunk = 0;
        chunks.add(new Chunk(address, byteSize, 0));
        reserved = byteSize;
    }

    long allocate(long size, int holder) {
        if (release != null && size > reserved - offset) {
            throw new IllegalStateException("memory: expected at most " + reserved + " bytes, of which " + offset
                    + " are handed out, got " + size + " more; allocate more at once");
        }
        while (chunk < chunks.size()) {
            Chunk present = chunks.get(chunk);
            if (size <= present.byteSize - offset) {
                return take(present.address + offset, size);
            }
            present.filled = offset;
            usedBefore += offset;
            chunk++;
            offset = 0;
        }
        chunks.add(reserve(Math.max(size, Math.clamp(reserved / 4, firstChunk, laterChunk)), holder));
        return take(chunks.get(chunk).address, size);
    }

    private long take(long address, long size) {
        offset += size;
        peak = Math.max(peak, used());
        return address;
    }

    private Chunk reserve(long byteSize, int holder) {
        MemorySegment memory = device.malloc(byteSize, holder);
        reserved += byteSize;
        return new Chunk(memory.address(), byteSize, holder);
    }

    /** Returns the position of the top: chunk number above, offset within it below. */
    long mark() {
        return ((long) chunk << OFFSET_BITS) | offset;
    }

    void rewind(long mark) {
        int to = (int) (mark >>> OFFSET_BITS);
        while (chunk > to) {
            chunk--;
            usedBefore -= chunks.get(chunk).filled;
        }
        offset = mark & ((1L << OFFSET_BITS) - 1);
    }

    /** Overwrites everything above {@code mark}, to reveal reads of freed memory. */
    void poison(long mark, MemorySegment stream) {
        int to = (int) (mark >>> OFFSET_BITS);
        for (int i = to; i <= chunk && i < chunks.size(); i++) {
            long begin = i == to ? mark & ((1L << OFFSET_BITS) - 1) : 0;
            long end = i == chunk ? offset : chunks.get(i).filled;
            MemoryReuse.poison(chunks.get(i).address + begin, end - begin, stream);
        }
    }

    long used() {
        return usedBefore + offset;
    }

    long reserved() {
        return reserved;
    }

    /** Replaces several chunks by one that holds the most that was in use. Nothing may be in use. */
    void unite(int holder) {
        if (chunks.size() > 1 && chunk == 0 && offset == 0) {
            free(null); // a scope of shared weights is never restarted
            chunks.add(reserve((peak + UNITED_STEP - 1) & -UNITED_STEP, holder));
        }
    }

    /** Frees the chunks, or leaves them to {@code shared}. */
    void free(@Nullable SharedMemory shared) {
        if (release != null && !chunks.isEmpty()) {
            release.run();
            chunks.clear();
        }
        for (Chunk present : chunks.reversed()) {
            MemorySegment memory = MemorySegment.ofAddress(present.address);
            if (shared == null) {
                device.free(memory, present.byteSize, present.holder);
            } else {
                device.free(present.byteSize, present.holder, () -> shared.leave(memory));
            }
        }
        chunks.clear();
        chunk = 0;
        offset = 0;
        usedBefore = 0;
        reserved = 0;
    }
}
