package dev.chagres.bindings;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;

/**
 * Finds functions in the libraries that {@link NativeLibraries} has opened. The JVM gives a library to one class loader alone; these are
 * opened by the C library instead, which counts, so that two applications of one server can have a copy of Chagres each.
 *
 * <p>Threading: thread-safe.
 */
public final class OpenedLibraries {
    private static final List<SymbolLookup> LIBRARIES = new CopyOnWriteArrayList<>();

    /** Looks a name up in each library, in the order of their opening. The generated bindings ask it at the first call of a function. */
    public static final SymbolLookup LOOKUP = OpenedLibraries::find;

    private OpenedLibraries() {}

    /** Adds a library, which stays open for the life of the process. */
    static void add(SymbolLookup library) {
        LIBRARIES.add(library);
    }

    private static Optional<MemorySegment> find(String name) {
        return LIBRARIES.stream()
                .flatMap(library -> library.find(name).stream())
                .findFirst();
    }
}
