package dev.chagres.bindings;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A library's version as its surroundings tell it, before it is opened: the name of the file behind the links
 * ({@code libcudnn.so.9.14.0}), or of the Python package above it ({@code nvidia_cudnn_cu13-9.19.0.56.dist-info}).
 */
final class FileVersion {

    private static final Pattern FILE_NAME = Pattern.compile(".*\\.so\\.(\\d+\\.\\d+(?:\\.\\d+)*)");
    private static final int FOLDERS_ABOVE = 4;

    private FileVersion() {}

    /** The version of a library's main file; empty when nothing tells it. */
    static Optional<LibraryVersion> of(VendorLibrary library, Path file) {
        Path real;
        try {
            real = file.toRealPath();
        } catch (IOException unreadable) {
            return Optional.empty();
        }
        Matcher name = FILE_NAME.matcher(String.valueOf(real.getFileName()));
        if (name.matches()) {
            return LibraryVersion.parse(name.group(1));
        }
        return ofPackage(library, file.toAbsolutePath()).or(() -> ofPackage(library, real));
    }

    private static Optional<LibraryVersion> ofPackage(VendorLibrary library, Path file) {
        Path folder = file.getParent();
        for (int up = 0; up < FOLDERS_ABOVE && folder != null; up++) {
            List<String> names = new ArrayList<>();
            try (DirectoryStream<Path> found = Files.newDirectoryStream(folder, library.packageInfo())) {
                found.forEach(path -> names.add(String.valueOf(path.getFileName())));
            } catch (IOException unreadable) {
                return Optional.empty();
            }
            if (!names.isEmpty()) {
                names.sort(null);
                return LibraryVersion.parse(
                        names.getFirst().substring(names.getFirst().indexOf('-') + 1));
            }
            folder = folder.getParent();
        }
        return Optional.empty();
    }
}
