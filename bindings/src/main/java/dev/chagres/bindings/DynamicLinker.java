package dev.chagres.bindings;

import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import java.util.Optional;

/**
 * The C library's {@code dlopen}: {@link System#load} cannot put a library into the global scope, which Transformer Engine
 * needs of NVRTC, gives a library to one class loader alone, and says less when it fails.
 *
 * <p>Source: dlopen(3).
 */
final class DynamicLinker {

    /** Resolve functions at their first call; Transformer Engine's library has symbols that no other library provides. */
    static final int LAZY = 0x1;
    /** RTLD_NOW: all functions must be found at once. */
    static final int NOW = 0x2;

    /** Make the symbols visible to libraries opened later. */
    static final int GLOBAL = 0x100;

    private static final Linker LINKER = Linker.nativeLinker();
    private static final AddressLayout C_STRING =
            ValueLayout.ADDRESS.withTargetLayout(MemoryLayout.sequenceLayout(Long.MAX_VALUE, ValueLayout.JAVA_BYTE));
    private static final MethodHandle OPEN =
            handle("dlopen", FunctionDescriptor.of(ValueLayout.ADDRESS, ValueLayout.ADDRESS, ValueLayout.JAVA_INT));
    private static final MethodHandle SYMBOL =
            handle("dlsym", FunctionDescriptor.of(ValueLayout.ADDRESS, ValueLayout.ADDRESS, ValueLayout.ADDRESS));
    private static final MethodHandle ERROR = handle("dlerror", FunctionDescriptor.of(C_STRING));

    private DynamicLinker() {}

    /** The dynamic loader refused a file; the message is the loader's. */
    static final class Refusal extends Exception {
        private static final long serialVersionUID = 1;

        Refusal(String loaderText) {
            super(loaderText);
        }

        String loaderText() {
            return String.valueOf(getMessage());
        }
    }

    /** Opens a library by file or, without a slash, by the loader's path; it stays open for the life of the process. */
    static MemorySegment open(String name, int flags) throws Refusal {
        MemorySegment library;
        MemorySegment error = MemorySegment.NULL;
        try (Arena arena = Arena.ofConfined()) {
            library = (MemorySegment) OPEN.invokeExact(arena.allocateFrom(name), flags);
            if (library.equals(MemorySegment.NULL)) {
                error = (MemorySegment) ERROR.invokeExact();
            }
        } catch (Throwable unexpected) {
            throw new AssertionError("dlopen could not be called", unexpected);
        }
        if (library.equals(MemorySegment.NULL)) {
            throw new Refusal(error.equals(MemorySegment.NULL) ? "no reason given" : error.getString(0));
        }
        return library;
    }

    static MemorySegment open(Path file, int flags) throws Refusal {
        return open(file.toAbsolutePath().toString(), flags);
    }

    /** A function of an opened library, or of what that library brought along. */
    static Optional<MethodHandle> function(MemorySegment library, String name, FunctionDescriptor descriptor) {
        return lookup(library).find(name).map(address -> LINKER.downcallHandle(address, descriptor));
    }

    /** What an opened library has, or what that library brought along. */
    static SymbolLookup lookup(MemorySegment library) {
        return name -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment address = (MemorySegment) SYMBOL.invokeExact(library, arena.allocateFrom(name));
                return address.equals(MemorySegment.NULL) ? Optional.empty() : Optional.of(address);
            } catch (Throwable unexpected) {
                throw new AssertionError("dlsym could not be called", unexpected);
            }
        };
    }

    /** A function of the C library; empty where that has none of this name. */
    static Optional<MethodHandle> function(String name, FunctionDescriptor descriptor) {
        return LINKER.defaultLookup().find(name).map(address -> LINKER.downcallHandle(address, descriptor));
    }

    private static MethodHandle handle(String name, FunctionDescriptor descriptor) {
        return LINKER.downcallHandle(LINKER.defaultLookup().findOrThrow(name), descriptor);
    }
}
