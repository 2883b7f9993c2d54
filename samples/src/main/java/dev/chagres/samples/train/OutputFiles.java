package dev.chagres.samples.train;

import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/** Names and failures of the files that a run writes. */
final class OutputFiles {
    private OutputFiles() {}

    /** Returns the file behind a symbolic link, which stays a link; every other path as it is. */
    static Path behindLink(Path target) {
        try {
            return Files.isSymbolicLink(target) ? target.toRealPath() : target;
        } catch (IOException e) {
            throw unwritable(target, e);
        }
    }

    /**
     * Whether what is written goes straight to the file: to a pipe or a device, and to whatever a path into {@code /dev} or
     * {@code /proc} leads to, such as {@code /dev/stdout}. Nothing there may be replaced.
     */
    static boolean isDirect(Path target) {
        Path absolute = target.toAbsolutePath().normalize();
        return absolute.startsWith("/dev")
                || absolute.startsWith("/proc")
                || (Files.exists(target) && !Files.isRegularFile(target));
    }

    /** Returns the name that a file has until it is whole. */
    static Path part(Path target) {
        return target.resolveSibling(target.getFileName() + ".part");
    }

    /** Says in one line why a file cannot be written. */
    static TrainingException unwritable(Path target, IOException e) {
        String problem = switch (e) {
            case NoSuchFileException missing -> "its folder does not exist";
            case AccessDeniedException denied -> "no permission to write it";
            case FileSystemException system when system.getReason() != null -> system.getReason();
            default -> e.getMessage() == null ? e.toString() : e.getMessage();
        };
        return new TrainingException(target + ": cannot be written: " + problem, e);
    }
}
