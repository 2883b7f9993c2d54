package dev.chagres.internal.memory;

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
    private record Kept(Runnable free, long newestUser) {}

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

    /** Keeps {@code free} for later and returns true where a graph may use the memory; else returns false. */
    boolean keep(Runnable free) {
        if (living.isEmpty()) {
            return false;
        }
        kept.add(new Kept(free, newest));
        return true;
    }

    /** Frees what no other graph than this one could use. */
    void close(long graph) {
        living.remove(graph);
        while (!kept.isEmpty() && (living.isEmpty() || living.first() > kept.getFirst().newestUser)) {
            kept.removeFirst().free.run();
        }
    }
}
