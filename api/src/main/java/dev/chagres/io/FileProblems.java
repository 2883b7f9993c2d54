package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/** Why a file cannot be written, each in one line that begins with its name. */
final class FileProblems {
    private FileProblems() {}

    static UncheckedIOException unwritable(Path name, String reason) {
        String text = ForeignText.plain(name) + ": cannot be written: " + reason;
        return new UncheckedIOException(text, new IOException(text));
    }

    static UncheckedIOException unwritable(Path name, IOException e) {
        String reason = switch (e) {
            case NoSuchFileException missing -> "its folder does not exist";
            case AccessDeniedException denied -> "no permission to write it";
            case FileSystemException system when system.getReason() != null -> system.getReason();
            default -> e.getMessage() == null ? e.toString() : e.getMessage();
        };
        return new UncheckedIOException(
                ForeignText.plain(name) + ": cannot be written: " + ForeignText.plain(reason), e);
    }

    static UncheckedIOException inUse(Path name, String writer, Path part) {
        return unwritable(
                name,
                writer + " is writing it (" + ForeignText.plain(part)
                        + " is locked); wait for its end, or name another file");
    }
}
