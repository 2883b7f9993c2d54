package dev.chagres.internal.memory;

import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.TreeSet;

/**
 * Memory that graphs of one device may still use. A graph has addresses in it, so memory that is freed while graphs live is kept
 * until every graph that was captured before is closed.
 *
 * <p>Threading: the device's thread.
 */
final class GraphMemory {
    private record Kept(MemorySegment memory, long byteSize, long newestUser) {}

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

    /** Keeps the memory and answers true, or answers false where no graph can use it. */
    boolean keep(MemorySegment memory, long byteSize) {
        if (living.isEmpty()) {
            return false;
        }
        kept.add(new Kept(memory, byteSize, newest));
        return true;
    }

    /** Frees what no other graph than this one could use. */
    void close(long graph, DeviceState device) {
        living.remove(graph);
        while (!kept.isEmpty() && (living.isEmpty() || living.first() > kept.getFirst().newestUser)) {
            Kept unused = kept.removeFirst();
            device.freeNow(unused.memory, unused.byteSize);
        }
    }
}
