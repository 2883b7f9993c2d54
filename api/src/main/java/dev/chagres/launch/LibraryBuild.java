package dev.chagres.launch;

import dev.chagres.bindings.Provider;
import dev.chagres.nccl.UniqueId;
import java.io.IOException;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileSystemNotFoundException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.CodeSource;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import java.util.zip.CRC32C;
import java.util.zip.ZipEntry;
import java.util.zip.ZipFile;
import org.jspecify.annotations.Nullable;

/**
 * Identifies the build of this library and of NCCL that a process runs: ranks of different builds are incompatible.
 *
 * <p>Threading: immutable.
 */
final class LibraryBuild {
    private static final String CLASS = ".class";

    private LibraryBuild() {}

    /** Returns a text that is equal in processes with the same classes and the same NCCL. */
    static String text() {
        return "classes " + classes() + ", " + Provider.current().label() + " with NCCL " + UniqueId.ncclVersion();
    }

    /** Returns a checksum of all classes of this library; in a runtime image, the module's version. */
    private static String classes() {
        try {
            Path place = place();
            if (place == null) {
                return "of " + LibraryBuild.class.getModule();
            }
            CRC32C checksum = new CRC32C();
            for (String line : Files.isDirectory(place) ? ofFolder(place) : ofJar(place)) {
                checksum.update(line.getBytes(StandardCharsets.UTF_8));
            }
            return Long.toHexString(checksum.getValue());
        } catch (IOException e) {
            throw new IllegalStateException("the library's own classes cannot be read: " + e.getMessage(), e);
        }
    }

    private static @Nullable Path place() {
        CodeSource source = LibraryBuild.class.getProtectionDomain().getCodeSource();
        if (source == null || source.getLocation() == null) {
            return null;
        }
        try {
            Path place = Path.of(source.getLocation().toURI());
            return Files.exists(place) ? place : null;
        } catch (URISyntaxException | FileSystemNotFoundException | IllegalArgumentException notAFile) {
            return null;
        }
    }

    private static List<String> ofFolder(Path folder) throws IOException {
        List<Path> files;
        try (Stream<Path> all = Files.walk(folder)) {
            files = all.filter(file -> file.toString().endsWith(CLASS)).toList();
        }
        List<String> lines = new ArrayList<>();
        for (Path file : files) {
            CRC32 checksum = new CRC32();
            checksum.update(Files.readAllBytes(file));
            lines.add(folder.relativize(file) + " " + checksum.getValue());
        }
        return lines.stream().sorted().toList();
    }

    /** A jar has its files' checksums. */
    private static List<String> ofJar(Path jar) throws IOException {
        try (ZipFile file = new ZipFile(jar.toFile())) {
            return file.stream()
                    .filter(entry -> entry.getName().endsWith(CLASS))
                    .map(LibraryBuild::line)
                    .sorted()
                    .toList();
        }
    }

    private static String line(ZipEntry entry) {
        return entry.getName() + " " + entry.getCrc();
    }
}
