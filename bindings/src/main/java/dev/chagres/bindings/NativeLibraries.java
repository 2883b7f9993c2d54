package dev.chagres.bindings;

import dev.chagres.bindings.LibrarySearch.Found;
import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Opens the native libraries of this process's {@link Provider}, once. Comes before the first call of a generated binding.
 *
 * <p>Threading: thread-safe.
 */
public final class NativeLibraries {

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
        Surroundings surroundings = Surroundings.ofProcess();
        OwnLibraries.requireLinux(surroundings);
        NativeAccess.ensure();
        Provider provider = Provider.current();
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
        give(own, own.reference());
        give(own, own.guard());
        StartCalls.teOpen(own.reference()).ifPresent(text -> {
            throw own.notLoadable(own.reference(), text);
        });
        StartCalls.opsOpen(null, null, null, null);
    }

    private static void loadCuda(Surroundings surroundings, OwnLibraries own) {
        Map<VendorLibrary, Found> found = new LibrarySearch(surroundings).findAll();
        Found runtime = Objects.requireNonNull(found.get(VendorLibrary.CUDA_RUNTIME));
        Found nvrtc = Objects.requireNonNull(found.get(VendorLibrary.NVRTC));
        Found te = Objects.requireNonNull(found.get(VendorLibrary.TRANSFORMER_ENGINE));
        Path headers = CudaHeaders.find(surroundings, runtime.folder());
        found.values().forEach(NativeLibraries::warnOfPassedOver);
        VendorLibraries.check(te, FileVersion.of(te.library(), te.mainFile()), surroundings);

        give(own, own.guard());
        StartCalls.setEnvironment(CudaHeaders.VARIABLE, headers.toString());
        for (Found library : found.values()) {
            if (library.library() != VendorLibrary.TRANSFORMER_ENGINE) {
                MemorySegment opened = VendorLibraries.open(library, GLOBALLY, surroundings);
                VendorLibraries.check(library, VersionReader.read(library, opened), surroundings);
                give(library, surroundings);
            }
        }
        StartCalls.teOpen(te.mainFile()).ifPresent(text -> {
            throw VendorLibraries.notLoadable(te.library(), te.mainFile(), text, surroundings);
        });
        give(own, own.operations());
        requireOwn(surroundings.cache());
        StartCalls.opsOpen(
                runtime.mainFile(),
                nvrtc.mainFile(),
                headers,
                surroundings.cache().resolve("kernels"));
    }

    /** Compiled kernels lie in the cache, too: they run on the GPU, over this process's memory. */
    private static void requireOwn(Path cache) {
        FileOwnership.fault(cache, new LoadFault.Supply("", Surroundings.CACHE_ELSEWHERE))
                .ifPresent(fault -> {
                    throw new MissingLibraryException(
                            OwnLibraries.NAME,
                            new Finding(
                                    Reason.NOT_LOADABLE,
                                    "compiled operations in " + cache + " are not used: " + fault.cause(),
                                    List.of(),
                                    "",
                                    fault.remedy()));
                });
    }

    private static void warnOfPassedOver(Found found) {
        for (MissingLibraryException.Attempt attempt : found.passedOver()) {
            Log.logger()
                    .log(
                            System.Logger.Level.WARNING,
                            "{0}: passed over {1}; using {2}",
                            found.library().title(),
                            ForeignText.lines(attempt.toString()),
                            ForeignText.plain(found.mainFile()));
        }
    }

    private static void give(OwnLibraries own, Path file) {
        give(file, refusal -> own.notLoadable(file, refusal));
    }

    private static void give(Found found, Surroundings surroundings) {
        Path file = found.mainFile();
        give(file, refusal -> VendorLibraries.notLoadable(found.library(), file, refusal, surroundings));
    }

    /** Gives a library to {@link OpenedLibraries}, where the generated bindings look symbols up. */
    private static void give(Path file, Function<String, MissingLibraryException> fault) {
        try {
            OpenedLibraries.add(DynamicLinker.lookup(DynamicLinker.open(file, DynamicLinker.LAZY)));
        } catch (DynamicLinker.Refusal refusal) {
            throw fault.apply(refusal.loaderText());
        }
    }
}
