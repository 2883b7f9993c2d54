package dev.chagres.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.BitSet;
import java.util.Optional;

/**
 * The cores that the calling thread may run on. Threads and processes that it starts inherit them.
 *
 * <p>Threading: each thread changes its own.
 *
 * <p>Source: {@code sched_getaffinity} and {@code sched_setaffinity} of Linux.
 */
public final class ThreadAffinity {
    /** More cores than Linux can be built for. */
    private static final int BYTES = 1 << 13;

    static final FunctionDescriptor DESCRIPTOR = FunctionDescriptor.of(JAVA_INT, JAVA_INT, JAVA_LONG, ADDRESS);

    private ThreadAffinity() {}

    private static Optional<MethodHandle> handle(String name) {
        return DynamicLinker.function(name, DESCRIPTOR);
    }

    private static int call(MethodHandle handle, MemorySegment mask) {
        try {
            return (int) handle.invokeExact(0, mask.byteSize(), mask);
        } catch (Throwable unexpected) {
            throw new AssertionError("the affinity of a thread could not be asked for", unexpected);
        }
    }

    /** Returns the cores of the calling thread; empty where the operating system does not say. */
    public static BitSet cores() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment mask = arena.allocate(BYTES, Long.BYTES);
            return handle("sched_getaffinity")
                            .filter(get -> call(get, mask) == 0)
                            .isPresent()
                    ? BitSet.valueOf(mask.asByteBuffer())
                    : new BitSet();
        }
    }

    /**
     * Lets the calling thread run on {@code cores} alone.
     *
     * @return whether the operating system has done it; else nothing has changed
     */
    public static boolean set(BitSet cores) {
        byte[] bytes = cores.toByteArray();
        if (bytes.length > BYTES) {
            return false;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment mask = arena.allocate(BYTES, Long.BYTES);
            mask.copyFrom(MemorySegment.ofArray(bytes));
            return handle("sched_setaffinity")
                    .filter(set -> call(set, mask) == 0)
                    .isPresent();
        }
    }
}
