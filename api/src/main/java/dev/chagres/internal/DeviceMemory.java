package dev.chagres.internal;

import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * A stack of device memory: allocation moves a pointer, {@link #rewind} moves it back.
 *
 * <p>The stack grows by chunks from {@code cudaMalloc}. What does not fit into the rest of a chunk begins the next one, so
 * several chunks waste memory: {@link #unite} makes one of them while the stack is empty. A program that repeats its
 * allocations so reaches a steady state in which CUDA is not called at all, and addresses repeat.
 *
 * <p>Threading: the device's thread.
 */
public final class DeviceMemory {
    /** Alignment of every allocation: CUDA's own, and more than any vectorised access needs. */
    public static final long ALIGNMENT = 256;

    private static final long FIRST_CHUNK = 2L << 20;
    private static final long LATER_CHUNK = 32L << 20;

    private static final class Chunk {
        private final long address;
        private final long byteSize;
        /** Bytes handed out when the stack moved on to the next chunk. */
        private long filled;

        private Chunk(long address, long byteSize) {
            this.address = address;
            this.byteSize = byteSize;
        }
    }

    private final DeviceState device;
    private final List<Chunk> chunks = new ArrayList<>();
    private int chunk;
    private long offset;
    private long usedBefore;
    private long reserved;
    private long peak;

    /** Makes an empty stack on {@code device}. */
    public DeviceMemory(DeviceState device) {
        this.device = device;
    }

    /** Returns the address of {@code byteSize} bytes; a size of 0 gets an address too. */
    public long allocate(long byteSize) {
        long size = Math.max(ALIGNMENT, aligned(byteSize));
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
        chunks.add(reserve(Math.max(size, chunks.isEmpty() ? FIRST_CHUNK : LATER_CHUNK)));
        return take(chunks.get(chunk).address, size);
    }

    /** Returns the next multiple of the alignment; for sizes that have none, a multiple that no device has. */
    private static long aligned(long byteSize) {
        return byteSize > Long.MAX_VALUE - ALIGNMENT
                ? Long.MAX_VALUE & -ALIGNMENT
                : (byteSize + ALIGNMENT - 1) & -ALIGNMENT;
    }

    private long take(long address, long size) {
        offset += size;
        peak = Math.max(peak, usedBefore + offset);
        return address;
    }

    private Chunk reserve(long byteSize) {
        MemorySegment memory = device.malloc(byteSize);
        reserved += byteSize;
        return new Chunk(memory.address(), byteSize);
    }

    /** Returns the position of the top, for {@link #rewind}: chunk number in the upper 16 bits, offset below. */
    public long mark() {
        return ((long) chunk << 48) | offset;
    }

    /** Moves the top back to {@code mark}. */
    public void rewind(long mark) {
        int to = (int) (mark >>> 48);
        long back = mark & ((1L << 48) - 1);
        while (chunk > to) {
            chunk--;
            usedBefore -= chunks.get(chunk).filled;
        }
        offset = back;
    }

    /** Replaces several chunks by one that holds the most that was in use. Nothing may be handed out. */
    public void unite() {
        if (chunks.size() > 1 && chunk == 0 && offset == 0) {
            free();
            chunks.add(reserve((peak + FIRST_CHUNK - 1) & -FIRST_CHUNK));
        }
    }

    /** Returns the bytes handed out at most at one time. */
    public long peak() {
        return peak;
    }

    /** Returns the bytes taken from CUDA. */
    public long reserved() {
        return reserved;
    }

    /** Gives every chunk back to CUDA, which waits for the work that uses them. */
    public void free() {
        for (Chunk present : chunks.reversed()) {
            device.free(MemorySegment.ofAddress(present.address), present.byteSize);
        }
        chunks.clear();
        chunk = 0;
        offset = 0;
        usedBefore = 0;
        reserved = 0;
    }
}
