package dev.chagres.samples.train;

import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/** Names and failures of the files that a run writes. */
final class OutputFiles {
    private OutputFiles() {}

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
