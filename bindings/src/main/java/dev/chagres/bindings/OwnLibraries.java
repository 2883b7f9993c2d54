package dev.chagres.bindings;

import dev.chagres.bindings.MissingLibraryException.Attempt;
import dev.chagres.bindings.MissingLibraryException.Finding;
import dev.chagres.bindings.MissingLibraryException.Reason;
import java.io.IOException;
import java.net.JarURLConnection;
import java.net.URISyntaxException;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.jar.JarFile;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * The folder with this project's own libraries: {@code -Dchagres.native.path}, else the resource folder
 * {@code dev/chagres/native/<os>-<arch>}. Resources in a folder are used where they are, those in a jar or in a run-time image
 * that jlink made are unpacked.
 *
 * @param supply how the files came to the folder
 */
record OwnLibraries(Path folder, LoadFault.Supply supply, Surroundings surroundings) {

    static final String PROPERTY = "chagres.native.path";
    static final String NAME = "Chagres native libraries";
    private static final LoadFault.Supply UNPACKED =
            new LoadFault.Supply("use a whole chagres-native jar", Surroundings.CACHE_ELSEWHERE);

    /** What runs where. */
    private static final String RUNS_ON =
            "run on Linux on x86-64: the reference on any such machine, cuda where an NVIDIA GPU of compute capability 9.0 is";

    private static final String GUARD = "libchagres_te.so";
    private static final String OPERATIONS = "libchagres_ops.so";
    private static final String REFERENCE = "libchagres_reference.so";

    Path guard() {
        return folder.resolve(GUARD);
    }

    Path operations() {
        return folder.resolve(OPERATIONS);
    }

    Path reference() {
        return folder.resolve(REFERENCE);
    }

    /**
     * Checks the platform before anything of it is asked.
     *
     * @throws MissingLibraryException when it is not Linux
     */
    static void requireLinux(Surroundings surroundings) {
        String system = surroundings.property("os.name").orElse("unknown");
        if (!system.equals("Linux")) {
            String seen = ForeignText.plain(system + " on " + surroundings.processor());
            throw new MissingLibraryException(
                    NAME,
                    new Finding(
                            Reason.NOT_FOUND,
                            "no libraries for " + seen,
                            List.of(new Attempt("this platform, " + seen, "none are built for it, of either provider")),
                            "",
                            RUNS_ON + "; here that is " + instead(system)));
        }
    }

    private static String instead(String system) {
        return system.startsWith("Windows")
                ? "WSL 2 (wsl --install), with a JDK 25 in it; it reaches an NVIDIA GPU, too"
                : "a container or a virtual machine: docker run --platform linux/amd64 eclipse-temurin:25";
    }

    /**
     * Finds the folder and checks that the provider's libraries are in it.
     *
     * @throws MissingLibraryException when they are not, or cannot be unpacked
     */
    static OwnLibraries find(Surroundings surroundings, Provider provider) {
        return find(surroundings, provider, OwnLibraries.class.getClassLoader());
    }

    static OwnLibraries find(Surroundings surroundings, Provider provider, @Nullable ClassLoader loader) {
        List<Attempt> attempts = new ArrayList<>();
        OwnLibraries own = locate(surroundings, loader, attempts);
        for (String file : List.of(GUARD, provider == Provider.CUDA ? OPERATIONS : REFERENCE)) {
            if (!Files.isRegularFile(own.folder().resolve(file))) {
                throw missing(file, attempts);
            }
        }
        return own;
    }

    /**
     * Finds the folder, whatever is in it.
     *
     * @throws MissingLibraryException when there is neither the property nor the resource folder
     */
    static OwnLibraries locate(Surroundings surroundings) {
        return locate(surroundings, OwnLibraries.class.getClassLoader(), new ArrayList<>());
    }

    private static OwnLibraries locate(
            Surroundings surroundings, @Nullable ClassLoader loader, List<Attempt> attempts) {
        Optional<String> property = surroundings.property(PROPERTY);
        if (property.isEmpty()) {
            attempts.add(new Attempt("-D" + PROPERTY, "not set"));
        }
        Path folder = property.isPresent()
                ? Path.of(property.get()).toAbsolutePath()
                : fromResources(surroundings, loader, attempts);
        String place = property.isPresent() ? "-D" + PROPERTY + "=" + folder : "resources in " + folder;
        attempts.add(new Attempt(place, seen(folder)));
        return new OwnLibraries(folder, supply(folder, surroundings), surroundings);
    }

    private static LoadFault.Supply supply(Path folder, Surroundings surroundings) {
        if (surroundings.property(PROPERTY).isPresent()) {
            return new LoadFault.Supply(
                    "take -D" + PROPERTY + " away, or name a folder that has the whole libraries with it",
                    "-D" + PROPERTY + "=DIR");
        }
        return new LoadFault.Supply(
                "build the project anew, or use a whole chagres-native jar",
                folder.startsWith(surroundings.cache()) ? Surroundings.CACHE_ELSEWHERE : "-D" + PROPERTY + "=DIR");
    }

    /** Why a file cannot serve, before it is opened. */
    Optional<LoadFault> fault(Path file) {
        return LoadFault.before(file, supply, surroundings);
    }

    /** Of one of these files that the loader refused. */
    MissingLibraryException notLoadable(Path file, String loaderText) {
        LoadFault fault = LoadFault.of(file, loaderText, supply, surroundings);
        return MissingLibraryException.notLoadable(NAME, file.toString(), loaderText, fault);
    }

    private static String seen(Path folder) {
        if (!Files.isDirectory(folder)) {
            return Files.exists(folder) ? "not a folder" : "no such folder";
        }
        String absent = Stream.of(GUARD, OPERATIONS, REFERENCE)
                .filter(file -> !Files.isRegularFile(folder.resolve(file)))
                .collect(Collectors.joining(", "));
        return absent.isEmpty() ? "has all libraries" : "lacks " + absent;
    }

    private static Path fromResources(Surroundings surroundings, @Nullable ClassLoader loader, List<Attempt> attempts) {
        String resource = "dev/chagres/native/" + surroundings.platform();
        URL guard = loader == null
                ? ClassLoader.getSystemResource(resource + "/" + GUARD)
                : loader.getResource(resource + "/" + GUARD);
        if (guard == null) {
            attempts.add(new Attempt("resource " + resource, "not on the class path or module path"));
            throw missing(GUARD, attempts);
        }
        try {
            Path cache = surroundings.cache().resolve("native");
            return switch (guard.getProtocol()) {
                case "file" -> Path.of(guard.toURI()).resolveSibling("");
                case "jrt" -> UnpackedResources.of(Path.of(guard.toURI()).resolveSibling(""), cache);
                default -> fromJar(guard, resource, cache);
            };
        } catch (IOException | URISyntaxException | ClassCastException failure) {
            if (failure instanceof UnpackedResources.UntrustedException untrusted) {
                throw notUnpacked(untrusted.fault(), attempts);
            }
            attempts.add(new Attempt("resource " + guard, failure.toString()));
            throw failure instanceof IOException io
                    ? notUnpacked(LoadFault.of(io, surroundings.cache(), UNPACKED), attempts)
                    : missing(GUARD, attempts);
        }
    }

    private static Path fromJar(URL guard, String resource, Path cache) throws IOException {
        JarURLConnection connection = (JarURLConnection) guard.openConnection();
        connection.setUseCaches(false);
        try (JarFile jar = connection.getJarFile()) {
            return UnpackedResources.of(jar, resource, cache);
        }
    }

    private static MissingLibraryException notUnpacked(LoadFault fault, List<Attempt> attempts) {
        String cause = fault.cause().isEmpty() ? "" : ", which cannot be unpacked: " + fault.cause();
        return new MissingLibraryException(
                NAME, new Finding(Reason.NOT_FOUND, GUARD + cause, attempts, "", fault.remedy()));
    }

    private static MissingLibraryException missing(String file, List<Attempt> attempts) {
        return new MissingLibraryException(
                NAME,
                new Finding(
                        Reason.NOT_FOUND,
                        file,
                        attempts,
                        "",
                        "put the chagres-native jar of this platform (Linux x86-64) on the class path or module path, or"
                                + " name a folder with -D" + PROPERTY
                                + "=DIR"));
    }
}
