package dev.chagres.ops;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.Leaks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * An NVTX range, which profilers such as Nsight Systems show with its name, host time and the work enqueued in it. Make a name once, and
 * use it for any number of ranges:
 *
 * {@snippet file="dev/chagres/ExamplesTest.java" region="range"}
 *
 * <p>Ranges nest, separately on each thread. Without a profiler, and on the reference, they are only counted.
 *
 * <p>Threading: thread-safe, but for {@link #close}, which no call of {@link #push} may overlap.
 *
 * <p>Source: {@code ops_range_push} and {@code ops_range_pop} in {@code ops.h}; {@code nvtxRangePushA} of NVTX 3.
 */
public final class Range implements AutoCloseable {
    private final String name;
    private final Arena arena = Arena.ofShared();
    private final MemorySegment text;
    private final Leaks.@Nullable Trace trace;

    /**
     * Makes a name.
     *
     * @throws dev.chagres.bindings.MissingLibraryException when the provider's libraries cannot be opened
     */
    public Range(String name) {
        this.name = Checks.given("name", name);
        NativeLibraries.ensureLoaded();
        text = arena.allocateFrom(name);
        trace = Leaks.opened("range " + name);
    }

    /** Returns the name. */
    public String name() {
        return name;
    }

    /**
     * Begins a range on the calling thread, inside those that are open there.
     *
     * @throws IllegalStateException when this name is closed
     */
    public void push() {
        if (!text.scope().isAlive()) {
            throw new IllegalStateException("range " + name + " is closed");
        }
        Status.ops(Ops.ops_range_push(text), "ops_range_push");
    }

    /**
     * Ends the range that the calling thread began last.
     *
     * @throws dev.chagres.bindings.OpsException when the thread has none open
     */
    public static void pop() {
        NativeLibraries.ensureLoaded();
        Status.ops(Ops.ops_range_pop(), "ops_range_pop");
    }

    /** Frees the name; ranges that were begun with it stay open until {@link #pop}. A second call does nothing. */
    @Override
    public void close() {
        if (text.scope().isAlive()) {
            Leaks.closed(trace);
            arena.close();
        }
    }

    @Override
    public String toString() {
        return "range " + name;
    }
}
