package dev.chagres.internal;

import dev.chagres.bindings.ForeignText;
import java.io.IOException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;

/**
 * Describes what is wrong with a file, where Java's own message is only the file's name.
 *
 * <p>Threading: thread-safe.
 */
public final class FileFailure {
    private FileFailure() {}

    /** Returns the reason for a failure. */
    public static String text(IOException failure) {
        return switch (failure) {
            case ClosedByInterruptException _ -> "the thread was interrupted, which closes the file; open it again";
            case ClosedChannelException _ ->
                "it was closed meanwhile, by another thread or by an interrupt; open it again";
            case AccessDeniedException denied -> "permission denied for " + ForeignText.plain(denied.getFile());
            case NoSuchFileException missing -> "no such file or folder: " + ForeignText.plain(missing.getFile());
            case FileSystemException other
            when other.getReason() != null -> other.getReason() + ": " + ForeignText.plain(other.getFile());
            default -> ForeignText.plain(failure.getMessage() == null ? failure : failure.getMessage());
        };
    }
}
