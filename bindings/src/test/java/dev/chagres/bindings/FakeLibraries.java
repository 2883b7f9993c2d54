package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;

/** Stand-ins for this project's own libraries, in a jar and unpacked. */
final class FakeLibraries {
    static final List<String> NAMES = List.of("libchagres_ops.so", "libchagres_reference.so", "libchagres_te.so");

    /** Where a jar has the libraries of this platform. */
    static final String RESOURCE =
            "dev/chagres/native/" + Surroundings.ofProcess().platform();

    private FakeLibraries() {}

    /** Random bytes in the place of a library. */
    static byte[] content(String name, int seed) {
        byte[] content = new byte[300_000];
        new Random(seed + name.hashCode()).nextBytes(content);
        return content;
    }

    /** Writes a jar with the libraries, and with files elsewhere that are none of theirs. */
    static Path jar(Path jar, int seed) throws IOException {
        try (JarOutputStream out = new JarOutputStream(Files.newOutputStream(jar))) {
            for (String library : NAMES) {
                out.putNextEntry(new JarEntry(RESOURCE + "/" + library));
                out.write(content(library, seed));
            }
            out.putNextEntry(new JarEntry(RESOURCE + "/deeper/file"));
            out.putNextEntry(new JarEntry("dev/chagres/native/other-platform/libchagres_te.so"));
        }
        return jar;
    }

    /** Checks that the folder has these libraries and nothing else. */
    static void assertUnpacked(Path unpacked, int seed) throws IOException {
        for (String library : NAMES) {
            assertArrayEquals(content(library, seed), Files.readAllBytes(unpacked.resolve(library)), library);
        }
        try (Stream<Path> files = Files.list(unpacked)) {
            assertEquals(
                    NAMES,
                    files.map(file -> String.valueOf(file.getFileName()))
                            .sorted()
                            .toList());
        }
    }
}
