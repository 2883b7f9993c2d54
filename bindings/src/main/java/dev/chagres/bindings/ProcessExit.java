package dev.chagres.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.Optional;

/**
 * The end of the process. When the JVM has ended, the destructors of native libraries run, and their threads, too: a thread that uses what a
 * destructor has freed crashes the process, whose status then says so instead of what the program has asked for.
 *
 * <p>Threading: any thread.
 *
 * <p>Source: {@code on_exit}, {@code fflush} and {@code _exit} of glibc.
 */
public final class ProcessExit {
    static final FunctionDescriptor FLUSH = FunctionDescriptor.of(JAVA_INT, ADDRESS);
    static final FunctionDescriptor REGISTER = FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS);

    private ProcessExit() {}

    /**
     * Lets the process end with its status where destructors would begin; whatever was to run after the JVM is skipped. For a shutdown hook, since
     * nothing takes it back. Does nothing where the C library has no such functions.
     */
    public static void skipDestructors() {
        Optional<MethodHandle> flush = DynamicLinker.function("fflush", FLUSH);
        Optional<MethodHandle> register = DynamicLinker.function("on_exit", REGISTER);
        Optional<MemorySegment> end = Linker.nativeLinker().defaultLookup().find("_exit");
        if (flush.isEmpty() || register.isEmpty() || end.isEmpty()) {
            return;
        }
        try {
            int _ = (int) flush.get().invokeExact(MemorySegment.NULL); // what native libraries have printed
            // It is called with the status, before what was registered earlier.
            int _ = (int) register.get().invokeExact(end.get(), MemorySegment.NULL);
        } catch (Throwable unexpected) {
            throw new AssertionError("the end of the process could not be set", unexpected);
        }
    }
}
