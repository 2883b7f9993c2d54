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
import org.jspecify.annotations.Nullable;

/**
 * The folder with this project's own libraries: {@code -Dchagres.native.path}, else the resource folder
 * {@code dev/chagres/native/<os>-<arch>}. Resources in a folder are used where they are, those in a jar are unpacked.
 */
record OwnLibraries(Path folder) {

    static final String PROPERTY = "chagres.native.path";
    static final String NAME = "Chagres native libraries";

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
     * Finds the folder and checks that the provider's libraries are in it.
     *
     * @throws MissingLibraryException when they are not, or cannot be unpacked
     */
    static OwnLibraries find(Surroundings surroundings, Provider provider) {
        return find(surroundings, provider, OwnLibraries.class.getClassLoader());
    }

    static OwnLibraries find(Surroundings surroundings, Provider provider, @Nullable ClassLoader loader) {
        List<String> wanted = List.of(GUARD, provider == Provider.CUDA ? OPERATIONS : REFERENCE);
        List<Attempt> attempts = new ArrayList<>();
        Optional<String> property = surroundings.property(PROPERTY);
        Path folder;
        if (property.isPresent()) {
            folder = Path.of(property.get()).toAbsolutePath();
            attempts.add(new Attempt("-D" + PROPERTY + "=" + folder, seen(folder, wanted)));
        } else {
            attempts.add(new Attempt("-D" + PROPERTY, "not set"));
            folder = fromResources(surroundings, loader, attempts);
            attempts.add(new Attempt("unpacked " + folder, seen(folder, wanted)));
        }
        for (String file : wanted) {
            if (!Files.isRegularFile(folder.resolve(file))) {
                throw missing(file, attempts);
            }
        }
        return new OwnLibraries(folder);
    }

    private static String seen(Path folder, List<String> wanted) {
        if (!Files.isDirectory(folder)) {
            return Files.exists(folder) ? "not a folder" : "no such folder";
        }
        List<String> absent = wanted.stream()
                .filter(file -> !Files.isRegularFile(folder.resolve(file)))
                .toList();
        return absent.isEmpty() ? "found" : "lacks " + String.join(", ", absent);
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
            if (guard.getProtocol().equals("file")) {
                return Path.of(guard.toURI()).resolveSibling("");
            }
            JarURLConnection connection = (JarURLConnection) guard.openConnection();
            connection.setUseCaches(false);
            try (JarFile jar = connection.getJarFile()) {
                return UnpackedResources.of(jar, resource, surroundings.cache().resolve("native"));
            }
        } catch (IOException | URISyntaxException | ClassCastException failure) {
            attempts.add(new Attempt("resource " + guard, failure.toString()));
            throw missing(GUARD, attempts);
        }
    }

    private static MissingLibraryException missing(String file, List<Attempt> attempts) {
        return new MissingLibraryException(
                NAME,
                new Finding(
                        Reason.NOT_FOUND,
                        file,
                        attempts,
                        "",
                        "put the chagres-native jar of this platform (Linux x86-64) on the class path, or name a folder"
                                + " with -D" + PROPERTY + "=DIR; a cache that cannot be written: -Dchagres.cache=DIR"));
    }
}
