package dev.chagres.bindings;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** A machine made of a folder, properties and environment variables. */
final class FakeMachine {

    final Map<String, String> properties = new HashMap<>();
    final Map<String, String> environment = new HashMap<>();
    final List<Path> python = new ArrayList<>();
    final Path root;

    FakeMachine(Path root) {
        this.root = root;
        properties.put("user.home", root.resolve("home/user").toString());
        properties.put("os.name", System.getProperty("os.name"));
        properties.put("os.arch", System.getProperty("os.arch"));
    }

    Surroundings surroundings() {
        return new Surroundings(properties::get, environment::get, root, () -> List.copyOf(python));
    }

    /** A folder of this machine, created when absent. */
    Path folder(String path) {
        try {
            return Files.createDirectories(root.resolve(path));
        } catch (IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
