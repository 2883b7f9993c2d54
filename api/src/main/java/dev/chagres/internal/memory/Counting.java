package dev.chagres.internal.memory;

import dev.chagres.bindings.NativeLibraries;
import dev.chagres.bindings.OpenedLibraries;
import dev.chagres.bindings.Provider;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.function.Supplier;

/**
 * Devices that count: what a thread opens while it counts hands out addresses and computes nothing, so that a step of a large model shows
 * its sizes in milliseconds. Threads that are started meanwhile count, too.
 *
 * <p>Threading: thread-safe; each thread counts for itself.
 */
public final class Counting {
    private static final ThreadLocal<Boolean> ON = new InheritableThreadLocal<>();

    /** The reference's switch for what a thread makes from now on. */
    private static final class Switch {
        private static final MethodHandle CALL = Linker.nativeLinker()
                .downcallHandle(
                        OpenedLibraries.LOOKUP.find("reference_count_only").orElseThrow(),
                        FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT));

        static void set(boolean counts) {
            try {
                var _ = (int) CALL.invokeExact(counts ? 1 : 0);
            } catch (Throwable e) { // A method handle declares every exception; this function throws none.
                throw new IllegalStateException(e);
            }
        }
    }

    private Counting() {}

    /**
     * Returns what {@code body} returns, which counts.
     *
     * @throws IllegalStateException when the provider is not the reference: a GPU's libraries compute what they are asked to
     */
    public static <T> T call(Supplier<T> body) {
        if (Provider.current() != Provider.REFERENCE) {
            throw new IllegalStateException("counting: expected the provider reference, which can count without"
                    + " computing, got " + Provider.current().label()
                    + "; run this program with -D" + Provider.PROPERTY + "=reference");
        }
        NativeLibraries.ensureLoaded();
        boolean outer = isOn();
        ON.set(true);
        Switch.set(true);
        try {
            return body.get();
        } finally {
            ON.set(outer);
            Switch.set(outer);
        }
    }

    /** Returns whether the calling thread counts. */
    static boolean isOn() {
        return Boolean.TRUE.equals(ON.get());
    }

    /** Tells the library that the calling thread, which opens a device, counts; a thread that was started by a counting one has not yet. */
    static boolean begin() {
        boolean counts = isOn();
        if (counts) {
            Switch.set(true);
        }
        return counts;
    }
}
