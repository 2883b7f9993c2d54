package dev.chagres.bindings;

import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * What the search for libraries sees of the machine: properties, environment variables and the root of the file system.
 * Tests hand in their own.
 *
 * @param root {@code /}, or a folder that stands for it
 * @param python the folders that {@code python3} says it imports from
 */
record Surroundings(Lookup properties, Lookup environment, Path root, Supplier<List<Path>> python) {

    /** What names another folder than {@link #cache}. */
    static final String CACHE_ELSEWHERE = "-Dchagres.cache=DIR, or the variable CHAGRES_CACHE";

    /** A value by name, null when there is none. */
    @FunctionalInterface
    interface Lookup {
        @Nullable
        String get(String name);
    }

    static Surroundings ofProcess() {
        return new Surroundings(System::getProperty, System::getenv, Path.of("/"), PythonFolders::ofInterpreter);
    }

    /** The value of a property; an empty one counts as not set. */
    Optional<String> property(String name) {
        return Optional.ofNullable(properties.get(name)).filter(value -> !value.isBlank());
    }

    /** The value of an environment variable; an empty one counts as not set. */
    Optional<String> variable(String name) {
        return Optional.ofNullable(environment.get(name)).filter(value -> !value.isBlank());
    }

    /**
     * The folder for unpacked and compiled files: {@code -Dchagres.cache}, {@code CHAGRES_CACHE}, {@code ~/.cache/chagres}; of a user
     * without a home a folder of that user's own among the temporary files.
     */
    Path cache() {
        return property("chagres.cache")
                .or(() -> variable("CHAGRES_CACHE"))
                .map(Path::of)
                .or(() -> home().map(home -> home.resolve(".cache").resolve("chagres")))
                .orElseGet(() -> Path.of(property("java.io.tmpdir").orElse("/tmp"), "chagres-" + FileOwnership.user()))
                .toAbsolutePath();
    }

    /** The user's folder; in a container whose user no file names, the JVM says that it is "?". */
    Optional<Path> home() {
        return property("user.home")
                .filter(home -> home.startsWith("/"))
                .or(() -> variable("HOME").filter(home -> home.startsWith("/")))
                .map(Path::of);
    }

    /** A path of the file system, as seen under {@link #root}. */
    Path absolute(String path) {
        return root.resolve(path.startsWith("/") ? path.substring(1) : path);
    }

    /** The processor as ELF and Debian call it, such as {@code x86_64}. */
    String processor() {
        String name = property("os.arch").orElse("unknown");
        return name.equals("amd64") ? "x86_64" : name;
    }

    /** The platform as the resource folders spell it, such as {@code linux-x86_64}. */
    String platform() {
        String system = property("os.name").orElse("unknown").toLowerCase(Locale.ROOT);
        return system.replace(' ', '_') + "-" + processor();
    }
}
