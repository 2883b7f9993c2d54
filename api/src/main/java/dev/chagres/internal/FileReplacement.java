package dev.chagres.internal;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.ThreadLocalRandom;

/**
 * Creates or replaces a file atomically: the new file is written in the same folder, forced to the disk and then renamed, so that at every
 * instant, a power cut included, the path has the old file or the new one. Programs that have the old file open or mapped keep it.
 *
 * <p>Threading: thread-safe.
 */
public final class FileReplacement {
    private FileReplacement() {}

    /** Writes the content. */
    @FunctionalInterface
    public interface Content {
        /**
         * Writes all of it.
         *
         * @throws IOException what the replacement is to fail with
         */
        void writeTo(FileChannel channel) throws IOException;
    }

    /** A path at which no file can be written, found before anything was written; the text says what is there. */
    public static final class PlaceException extends IOException {
        private static final long serialVersionUID = 1;

        private PlaceException(String text) {
            super(text);
        }
    }

    /**
     * Replaces {@code file}; one that is a symbolic link stays one, and the file that it points to is replaced.
     *
     * @param prefix what the name of the new file begins with until it is whole
     * @throws IOException when that fails; the old file is then as it was, and nothing is left beside it
     */
    public static void write(Path file, String prefix, Content content) throws IOException {
        Path target = Files.isSymbolicLink(file) ? file.toRealPath() : file.toAbsolutePath();
        Path folder = target.getParent();
        if (folder == null || Files.isDirectory(target)) {
            throw new PlaceException("expected the name of a file to write, got a folder");
        }
        if (Files.exists(target) && !Files.isRegularFile(target)) {
            throw new PlaceException(
                    "expected a file or a new name, got a device or a pipe, which a file cannot replace");
        }
        if (!Files.isDirectory(folder)) {
            throw new PlaceException("could not be written: no such folder: " + folder);
        }
        Path written = folder.resolve(
                prefix + Long.toHexString(ThreadLocalRandom.current().nextLong()) + ".tmp");
        try (FileChannel channel = FileChannel.open(written, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            complete(channel, content, written, target);
        }
        forceFolder(folder);
    }

    private static void complete(FileChannel channel, Content content, Path written, Path target) throws IOException {
        try {
            content.writeTo(channel);
            channel.force(true);
            Files.move(written, target, StandardCopyOption.ATOMIC_MOVE);
        } catch (Throwable failure) {
            removeAfter(failure, written);
            throw failure;
        }
    }

    private static void removeAfter(Throwable failure, Path written) {
        try {
            Files.deleteIfExists(written);
        } catch (IOException alsoFailed) {
            failure.addSuppressed(alsoFailed);
        }
    }

    /** A rename is on the disk once its folder is. */
    private static void forceFolder(Path folder) throws IOException {
        try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
            channel.force(true);
        }
    }
}
