package dev.chagres.internal.memory;

import dev.chagres.bindings.ForeignText;
import java.lang.foreign.MemorySegment;

/**
 * Checks of memory of the host that a caller gives.
 *
 * <p>Threading: any thread.
 */
public final class HostMemory {
    private HostMemory() {}

    /** Checks that {@code memory} is open to the calling thread. */
    public static void ensureOpen(String argument, MemorySegment memory) {
        if (!memory.scope().isAlive() || !memory.isAccessibleBy(Thread.currentThread())) {
            throw new IllegalStateException(argument + ": expected memory that is open to thread "
                    + ForeignText.quoted(Thread.currentThread().getName()) + ", got a segment "
                    + (memory.scope().isAlive() ? "of another thread's arena" : "whose arena is closed"));
        }
    }

    /** Checks that {@code memory} can be written. */
    public static void ensureWritable(String argument, MemorySegment memory) {
        if (memory.isReadOnly()) {
            throw new IllegalArgumentException(
                    argument + ": expected memory that can be written, got read-only memory");
        }
    }
}
