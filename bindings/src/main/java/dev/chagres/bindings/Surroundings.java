package dev.chagres.bindings;

import java.nio.file.Path;
import java.util.Locale;
import java.util.Optional;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/**
 * What the search for libraries sees of the machine: properties, environment variables and the root of the file system.
 * Tests hand in their own.
 *
 * @param root {@code /}, or a folder that stands for it
 */
record Surroundings(Lookup properties, Lookup environment, Path root) {

    /** A value by name, null when there is none. */
    @FunctionalInterface
    interface Lookup {
        @Nullable String get(String name);
    }

    static Surroundings ofProcess() {
        return new Surroundings(System::getProperty, System::getenv, Path.of("/"));
    }

    /** The value of a property; an empty one counts as not set. */
    Optional<String> property(String name) {
        return Optional.ofNullable(properties.get(name)).filter(value -> !value.isBlank());
    }

    /** The value of an environment variable; an empty one counts as not set. */
    Optional<String> variable(String name) {
        return Optional.ofNullable(environment.get(name)).filter(value -> !value.isBlank());
    }

    /** The folder for unpacked and compiled files: {@code -Dchagres.cache}, {@code CHAGRES_CACHE}, {@code ~/.cache/chagres}. */
    Path cache() {
        return property("chagres.cache")
                .or(() -> variable("CHAGRES_CACHE"))
                .map(Path::of)
                .orElseGet(() -> home().resolve(".cache").resolve("chagres"))
                .toAbsolutePath();
    }

    Path home() {
        return Path.of(property("user.home").orElse("/"));
    }

    /** A path of the file system, as seen under {@link #root}. */
    Path absolute(String path) {
        return root.resolve(path.startsWith("/") ? path.substring(1) : path);
    }

    /** The platform as the resource folders spell it, such as {@code linux-x86_64}. */
    String platform() {
        UnaryOperator<String> known = name -> property(name).orElse("unknown").toLowerCase(Locale.ROOT);
        String system = known.apply("os.name").startsWith("linux") ? "linux" : known.apply("os.name").replace(' ', '_');
        String processor = known.apply("os.arch");
        return system + "-" + (processor.equals("amd64") ? "x86_64" : processor);
    }
}
