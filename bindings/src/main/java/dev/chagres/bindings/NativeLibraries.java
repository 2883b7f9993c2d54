package dev.chagres.bindings;

import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Opens the native libraries of this process's {@link Provider}, once. Comes before the first call of a generated binding.
 *
 * <p>Threading: thread-safe.
 */
public final class NativeLibraries {

    private static volatile boolean loaded;
    private static @Nullable RuntimeException failure;

    private NativeLibraries() {}

    /**
     * Finds, opens and checks the libraries; does nothing when that was done before. A failure is final for the process:
     * later calls throw the same failure again, with the first as the cause.
     *
     * @throws MissingLibraryException when a library is not found, does not open or has the wrong version
     * @throws TransformerEngineException when the guard refuses to open its library
     * @throws OpsException when the operations refuse to open theirs
     * @throws IllegalArgumentException when a property has a value that it does not take
     */
    public static void ensureLoaded() {
        if (!loaded) {
            loadOnce();
        }
    }

    private static synchronized void loadOnce() {
        if (loaded) {
            return;
        }
        RuntimeException first = failure;
        if (first != null) {
            throw first instanceof NativeException known
                    ? known.again()
                    : new IllegalArgumentException(first.getMessage(), first);
        }
        try {
            load();
        } catch (NativeException | IllegalArgumentException refused) {
            failure = refused;
            throw refused;
        }
        loaded = true;
    }

    private static void load() {
        Surroundings surroundings = Surroundings.ofProcess();
        Provider provider = Provider.current();
        if (provider == Provider.CUDA) {
            throw new UnsupportedOperationException("NVIDIA's libraries cannot be opened yet");
        }
        OwnLibraries own = OwnLibraries.find(surroundings, provider);
        load(OwnLibraries.NAME, own.reference());
        load(OwnLibraries.NAME, own.guard());
        teOpen(own.reference());
    }

    /** Opens a library globally, then gives it to this class loader, where the generated bindings look symbols up. */
    private static void load(String library, Path file) {
        try {
            DynamicLinker.open(file, DynamicLinker.LAZY | DynamicLinker.GLOBAL);
            System.load(file.toString());
        } catch (DynamicLinker.Refusal refusal) {
            throw notLoadable(library, file, refusal.loaderText());
        } catch (UnsatisfiedLinkError refusal) {
            throw notLoadable(library, file, String.valueOf(refusal.getMessage()));
        }
    }

    private static MissingLibraryException notLoadable(String library, Path file, String loaderText) {
        return new MissingLibraryException(
                library,
                new Finding(
                        Reason.NOT_LOADABLE,
                        file.toString(),
                        List.of(),
                        loaderText,
                        "./chagres doctor shows what each library needs"));
    }

    private static void teOpen(Path file) {
        MethodHandle open = Linker.nativeLinker()
                .downcallHandle(
                        SymbolLookup.loaderLookup().findOrThrow("te_open"),
                        FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.ADDRESS));
        int status;
        try (Arena arena = Arena.ofConfined()) {
            status = (int) open.invokeExact(arena.allocateFrom(file.toString()));
        } catch (Throwable unexpected) {
            throw new AssertionError("te_open could not be called", unexpected);
        }
        Status.te(status, "te_open");
    }
}
