package dev.chagres.internal;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.time.Instant;
import java.util.Objects;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;
import java.util.zip.CRC32C;

/**
 * Creates or replaces a file atomically: the new file is written in the same folder, forced to the disk and then renamed, so that at every
 * instant, a power cut included, the path has the old file or the new one. Programs that have the old file open or mapped keep it. A new
 * file that a killed program has left is removed by the next one that replaces the same file, and an hour later by any that writes into
 * the folder.
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
        Path target = target(file);
        removeLeftovers(target, prefix);
        try (NewFile made = NewFile.beside(target, prefix)) {
            content.writeTo(made.channel);
            made.channel.force(true);
            Files.move(made.path, target, StandardCopyOption.ATOMIC_MOVE);
        }
        forceFolder(Objects.requireNonNull(target.getParent()));
    }

    /**
     * Tries whether {@link #write} could replace {@code file}, which stays as it is.
     *
     * @param prefix what the names of files begin with that are made for that, and removed
     * @throws IOException when it could not
     */
    public static void tryOut(Path file, String prefix) throws IOException {
        Path target = target(file);
        try (NewFile made = NewFile.beside(target, prefix)) {
            if (!Files.exists(target)) {
                return;
            }
            Path folder = Files.createDirectory(made.path.resolveSibling(made.path.getFileName() + "-folder"));
            try {
                // No folder replaces a file. The reason is another one where nothing may replace this file.
                String got = refusal(folder, target);
                if (!got.equals(refusal(folder, made.path))) {
                    throw new PlaceException("could not be replaced: " + got);
                }
            } finally {
                Files.deleteIfExists(folder);
            }
        }
    }

    private static String refusal(Path folder, Path file) throws IOException {
        try {
            Files.move(folder, file, StandardCopyOption.ATOMIC_MOVE);
        } catch (AccessDeniedException denied) {
            return "permission denied";
        } catch (FileSystemException refused) {
            return String.valueOf(refused.getReason());
        }
        Files.deleteIfExists(file); // It was removed meanwhile, and now is the folder.
        throw new PlaceException("could not be tried, for another program has just removed it");
    }

    /** Returns the file itself, or the one behind a link, at which a file can be. */
    private static Path target(Path file) throws IOException {
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
        try {
            Files.readAttributes(target, BasicFileAttributes.class);
        } catch (NoSuchFileException isNew) {
            // Any other reason, such as a name that is too long, would keep the new file from getting it.
        }
        return folder.toRealPath().resolve(target.getFileName());
    }

    /** A new file, locked while it is written, and removed unless it has been renamed. */
    private static final class NewFile implements AutoCloseable {
        final Path path;
        final FileChannel channel;

        private NewFile(Path path, FileChannel channel) {
            this.path = path;
            this.channel = channel;
        }

        static NewFile beside(Path target, String prefix) throws IOException {
            while (true) {
                Path path = target.resolveSibling(ownPrefix(target, prefix)
                        + Long.toHexString(ThreadLocalRandom.current().nextLong())
                        + SUFFIX);
                ProcessFiles.add(path);
                try {
                    NewFile made = new NewFile(
                            path, FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE));
                    if (made.lock()) {
                        return made;
                    }
                    made.close();
                } catch (IOException | RuntimeException failure) {
                    ProcessFiles.remove(path);
                    throw failure;
                }
            }
        }

        /** Tells others that the file is being written; false where one has taken it for a leftover just before. */
        private boolean lock() {
            try {
                return channel.tryLock() != null && Files.exists(path);
            } catch (IOException noLocks) {
                return true; // Then others cannot lock it either, and leave it.
            }
        }

        @Override
        public void close() throws IOException {
            try (channel) {
                Files.deleteIfExists(path);
            } finally {
                ProcessFiles.remove(path);
            }
        }
    }

    /** Files of other targets have another one. */
    private static String ownPrefix(Path target, String prefix) {
        CRC32C name = new CRC32C();
        name.update(String.valueOf(target.getFileName()).getBytes(StandardCharsets.UTF_8));
        return prefix + Long.toHexString(name.getValue()) + "-";
    }

    /** Removes new files that killed programs have left; what cannot be removed stays, for it does no harm to this one. */
    private static void removeLeftovers(Path target, String prefix) {
        Instant latest = Instant.now().minus(ABANDONED);
        String own = ownPrefix(target, prefix);
        try (Stream<Path> files = Files.list(Objects.requireNonNull(target.getParent()))) {
            files.filter(file -> isNamed(file, prefix))
                    .forEach(file -> removeIfAbandoned(file, isNamed(file, own) ? Instant.MAX : latest));
        } catch (IOException | UncheckedIOException unreadable) {
            // The new file is written all the same.
        }
    }

    private static boolean isNamed(Path file, String prefix) {
        String name = file.getFileName().toString();
        return name.startsWith(prefix) && name.endsWith(SUFFIX) && Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS);
    }

    private static void removeIfAbandoned(Path file, Instant latest) {
        // To close a second channel of this process would release the lock of the first.
        if (ProcessFiles.contains(file)) {
            return;
        }
        try (FileChannel channel = FileChannel.open(file, StandardOpenOption.WRITE)) {
            if (Files.getLastModifiedTime(file).toInstant().isBefore(latest) && channel.tryLock() != null) {
                Files.delete(file);
            }
        } catch (IOException | OverlappingFileLockException inUse) {
            // Another program writes it, or it is not this one's to remove.
        }
    }

    /** A rename is on the disk once its folder is. */
    private static void forceFolder(Path folder) throws IOException {
        try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
            channel.force(true);
        }
    }
}
