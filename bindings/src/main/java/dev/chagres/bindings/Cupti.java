package dev.chagres.bindings;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Finds NVIDIA's CUPTI, which tells of kernels by name. Nothing but profiles needs it.
 *
 * <p>Threading: thread-safe.
 */
public final class Cupti {
    private static final String FILE = "libcupti.so.13";
    private static final String PROPERTY = "chagres.cupti.path";
    private static final String VARIABLE = "CHAGRES_CUPTI_PATH";

    private Cupti() {}

    /**
     * Returns its file: where {@code -Dchagres.cupti.path} or {@code CHAGRES_CUPTI_PATH} says, or the first of a CUDA toolkit's, of
     * pip's package {@code nvidia-cuda-cupti}, and of {@code LD_LIBRARY_PATH}; nothing where none has it.
     */
    public static Optional<Path> find() {
        return find(Surroundings.ofProcess());
    }

    static Optional<Path> find(Surroundings surroundings) {
        Optional<String> named = surroundings.property(PROPERTY).or(() -> surroundings.variable(VARIABLE));
        if (named.isPresent()) {
            Path path = Path.of(named.get()).toAbsolutePath();
            return Optional.of(Files.isDirectory(path) ? path.resolve(FILE) : path);
        }
        return places(surroundings).stream()
                .map(folder -> folder.resolve(FILE))
                .filter(Files::isRegularFile)
                .findFirst()
                .or(() -> PythonFolders.of(surroundings).keySet().stream()
                        .map(site -> site.resolve("nvidia/cu13/lib").resolve(FILE))
                        .filter(Files::isRegularFile)
                        .findFirst());
    }

    /** Says how to bring it. */
    public static String remedy() {
        return "pip install nvidia-cuda-cupti==13.0.85, or name its folder with -D" + PROPERTY + "=DIR or " + VARIABLE;
    }

    private static List<Path> places(Surroundings surroundings) {
        List<Path> toolkits = new ArrayList<>();
        for (String home : List.of("CUDA_HOME", "CUDA_PATH")) {
            surroundings.variable(home).ifPresent(value -> toolkits.add(Path.of(value)));
        }
        Path local = surroundings.absolute("/usr/local");
        if (Files.isDirectory(local)) {
            try (DirectoryStream<Path> found = Files.newDirectoryStream(local, "cuda*")) {
                List<Path> versions = new ArrayList<>();
                found.forEach(versions::add);
                versions.sort(null);
                toolkits.addAll(versions.reversed());
            } catch (IOException unreadable) {
                // other places are tried
            }
        }
        List<Path> places = new ArrayList<>();
        for (Path toolkit : toolkits) {
            for (String below :
                    List.of("extras/CUPTI/lib64", "lib64", "targets/" + surroundings.processor() + "-linux/lib")) {
                places.add(toolkit.resolve(below));
            }
        }
        surroundings.variable("LD_LIBRARY_PATH").ifPresent(value -> {
            for (String folder : value.split(":", -1)) {
                if (!folder.isEmpty()) {
                    places.add(Path.of(folder));
                }
            }
        });
        return places;
    }
}
