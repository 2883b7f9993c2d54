package dev.chagres.internal;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.time.Instant;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;

/**
 * Creates or replaces a file atomically: the new file is written in the same folder, forced to the disk and then renamed, so that at every
 * instant, a power cut included, the path has the old file or the new one. Programs that have the old file open or mapped keep it. A new
 * file that a killed program has left is removed an hour later by the next one that writes into the folder.
 *
 * <p>Threading: thread-safe.
 */
public final class FileReplacement {
    private static final String SUFFIX = ".tmp";
    /** What nobody has written to for so long, and nobody holds, is left of a program that was killed. */
    private static final Duration ABANDONED = Duration.ofHours(1);

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
        removeLeftovers(folder, prefix);
        Path written = folder.resolve(
                prefix + Long.toHexString(ThreadLocalRandom.current().nextLong()) + SUFFIX);
        try (FileChannel channel = FileChannel.open(written, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            lock(channel);
            complete(channel, content, written, target);
        }
        forceFolder(folder);
    }

    /** Tells other programs, in {@link #removeLeftovers}, that the file is being written. */
    private static void lock(FileChannel channel) {
        try {
            var _ = channel.tryLock();
        } catch (IOException noLocks) {
            // Then they cannot lock it either, and leave it.
        }
    }

    /** Removes new files that killed programs have left; what cannot be removed stays, for it does no harm to this one. */
    private static void removeLeftovers(Path folder, String prefix) {
        Instant latest = Instant.now().minus(ABANDONED);
        try (Stream<Path> files = Files.list(folder)) {
            files.filter(file -> isNamed(file, prefix)).forEach(file -> removeIfAbandoned(file, latest));
        } catch (IOException | UncheckedIOException unreadable) {
            // The new file is written all the same.
        }
    }

    private static boolean isNamed(Path file, String prefix) {
        String name = file.getFileName().toString();
        return name.startsWith(prefix) && name.endsWith(SUFFIX) && Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS);
    }

    private static void removeIfAbandoned(Path file, Instant latest) {
        try {
            if (Files.getLastModifiedTime(file).toInstant().isAfter(latest)) {
                return;
            }
            try (FileChannel channel = FileChannel.open(file, StandardOpenOption.WRITE)) {
                if (channel.tryLock() != null) {
                    Files.delete(file);
                }
            }
        } catch (IOException | OverlappingFileLockException inUse) {
            // Another program writes it, or it is not this one's to remove.
        }
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
