package dev.chagres.bindings;

import dev.chagres.bindings.LibrarySearch.Found;
import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Opens the native libraries of this process's {@link Provider}, once. Comes before the first call of a generated binding.
 *
 * <p>Threading: thread-safe.
 */
public final class NativeLibraries {

    private static final System.Logger LOGGER = System.getLogger("dev.chagres");

    /** Transformer Engine looks NVRTC's functions up in the global scope: it does not say that it needs that library. */
    private static final int GLOBALLY = DynamicLinker.LAZY | DynamicLinker.GLOBAL;

    private static volatile boolean loaded;
    private static @Nullable RuntimeException failure;

    private NativeLibraries() {}

    /**
     * Finds, opens and checks the libraries; does nothing when that was done before. A failure is final for the process:
     * later calls throw the same failure again, with the first as the cause.
     *
     * @throws MissingLibraryException when a library is not found, does not open or has the wrong version
     * @throws OpsException when the operations refuse to open theirs
     * @throws IllegalArgumentException when a property, or a variable of the reference, has a value that it does not take
     * @throws IllegalStateException when the JVM was started with native access denied
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
            throw again(first);
        }
        try {
            load();
        } catch (NativeException | IllegalArgumentException | IllegalStateException refused) {
            failure = refused;
            throw refused;
        }
        loaded = true;
    }

    private static RuntimeException again(RuntimeException first) {
        return switch (first) {
            case NativeException refused -> refused.again();
            case IllegalArgumentException invalid -> new IllegalArgumentException(invalid.getMessage(), invalid);
            default -> new IllegalStateException(first.getMessage(), first);
        };
    }

    private static void load() {
        NativeAccess.ensure();
        Provider provider = Provider.current();
        Surroundings surroundings = Surroundings.ofProcess();
        VendorLibraries.requireVersionsProperty(surroundings);
        OwnLibraries own = OwnLibraries.find(surroundings, provider);
        switch (provider) {
            case CUDA -> loadCuda(surroundings, own);
            case REFERENCE -> {
                ReferenceVariables.check(surroundings);
                loadReference(own);
            }
        }
    }

    private static void loadReference(OwnLibraries own) {
        give(OwnLibraries.NAME, own.reference());
        give(OwnLibraries.NAME, own.guard());
        StartCalls.teOpen(own.reference()).ifPresent(text -> {
            throw notLoadable(OwnLibraries.NAME, own.reference(), text);
        });
        StartCalls.opsOpen(null, null, null, null);
    }

    private static void loadCuda(Surroundings surroundings, OwnLibraries own) {
        LibrarySearch search = new LibrarySearch(surroundings);
        Map<VendorLibrary, Found> found = new EnumMap<>(VendorLibrary.class);
        for (VendorLibrary library : VendorLibrary.values()) {
            found.put(library, search.find(library));
        }
        Found runtime = Objects.requireNonNull(found.get(VendorLibrary.CUDA_RUNTIME));
        Found nvrtc = Objects.requireNonNull(found.get(VendorLibrary.NVRTC));
        Found te = Objects.requireNonNull(found.get(VendorLibrary.TRANSFORMER_ENGINE));
        Path headers = CudaHeaders.find(surroundings, runtime.folder());
        found.values().forEach(NativeLibraries::warnOfPassedOver);
        VendorLibraries.check(te, FileVersion.of(te.library(), te.mainFile()), surroundings);

        give(OwnLibraries.NAME, own.guard());
        StartCalls.setEnvironment(CudaHeaders.VARIABLE, headers.toString());
        for (Found library : found.values()) {
            if (library.library() != VendorLibrary.TRANSFORMER_ENGINE) {
                MemorySegment opened = VendorLibraries.open(library, GLOBALLY);
                VendorLibraries.check(library, VersionReader.read(library, opened), surroundings);
                give(library.library().title(), library.mainFile());
            }
        }
        StartCalls.teOpen(te.mainFile()).ifPresent(text -> {
            throw VendorLibraries.notLoadable(te.library(), te.mainFile(), text);
        });
        give(OwnLibraries.NAME, own.operations());
        StartCalls.opsOpen(
                runtime.mainFile(),
                nvrtc.mainFile(),
                headers,
                surroundings.cache().resolve("kernels"));
    }

    private static void warnOfPassedOver(Found found) {
        for (MissingLibraryException.Attempt attempt : found.passedOver()) {
            LOGGER.log(
                    System.Logger.Level.WARNING,
                    "{0}: passed over {1}; using {2}",
                    found.library().title(),
                    attempt,
                    found.mainFile());
        }
    }

    /** Gives a library to this class loader, where the generated bindings look symbols up. */
    private static void give(String library, Path file) {
        try {
            System.load(file.toAbsolutePath().toString());
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
}
