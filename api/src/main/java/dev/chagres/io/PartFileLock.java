package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.ProcessFiles;
import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The {@code .part} of a file, which one process at a time may write.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: {@code /proc/locks}, whose lines are {@code 1: POSIX ADVISORY WRITE pid major:minor:inode start end}.
 */
final class PartFileLock implements Closeable {
    /** The most attempts: each fails if another process publishes its file at that moment. */
    private static final int ATTEMPTS = 100;

    private static final Path LOCKS = Path.of("/proc/locks");
    private static final int PROCESS = 4;
    private static final int FILE = 5;

    final FileChannel channel;
    private final Path own;

    private PartFileLock(FileChannel channel, Path own) {
        this.channel = channel;
        this.own = own;
    }

    /**
     * Opens a part and locks it; contents of an earlier run are removed only once it is locked.
     *
     * @param name what the file is to be called, for messages
     */
    static PartFileLock open(Path name, Path part) throws IOException {
        Path own = real(part);
        if (!ProcessFiles.add(own)) {
            throw FileProblems.inUse(name, "this process", part);
        }
        try {
            return new PartFileLock(lock(name, part), own);
        } catch (IOException | RuntimeException e) {
            ProcessFiles.remove(own);
            throw e;
        }
    }

    /** Closes the part, which another writer may then open. */
    @Override
    public void close() throws IOException {
        try {
            channel.close();
        } finally {
            ProcessFiles.remove(own);
        }
    }

    /** Returns the one path of the part, whose folder exists. */
    private static Path real(Path part) throws IOException {
        Path absolute = part.toAbsolutePath();
        Path folder = absolute.getParent();
        return folder == null ? absolute : folder.toRealPath().resolve(absolute.getFileName());
    }

    private static FileChannel lock(Path name, Path part) throws IOException {
        if (Files.isSymbolicLink(part)) {
            throw FileProblems.unwritable(name, part + ", its name until it is whole, is a link; remove that");
        }
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            Identity before = Identity.orCreate(part);
            FileChannel channel;
            try {
                channel = FileChannel.open(part, StandardOpenOption.WRITE, LinkOption.NOFOLLOW_LINKS);
            } catch (NoSuchFileException e) {
                continue;
            }
            try {
                boolean known = before.equals(Identity.of(part));
                if (known) {
                    lock(name, part, channel);
                }
                // Else another process has published this file meanwhile, so it is no longer a part.
                if (known && before.equals(Identity.of(part))) {
                    channel.truncate(0);
                    return channel;
                }
                channel.close();
            } catch (IOException | RuntimeException e) {
                channel.close();
                throw e;
            }
        }
        throw FileProblems.unwritable(name, part + " is made and published again and again by other processes");
    }

    /** Identifies a file: its number, and its time of creation, since numbers are reused. */
    private record Identity(@Nullable Object key, FileTime made) {
        static @Nullable Identity of(Path file) throws IOException {
            try {
                var attributes = Files.readAttributes(file, BasicFileAttributes.class, LinkOption.NOFOLLOW_LINKS);
                return new Identity(attributes.fileKey(), attributes.creationTime());
            } catch (NoSuchFileException e) {
                return null;
            }
        }

        static Identity orCreate(Path file) throws IOException {
            while (true) {
                Identity present = of(file);
                if (present != null) {
                    return present;
                }
                try {
                    Files.createFile(file);
                } catch (FileAlreadyExistsException e) {
                    // Another process was faster; its file is opened, or found to be locked.
                }
            }
        }
    }

    private static void lock(Path name, Path part, FileChannel channel) throws IOException {
        boolean locked;
        try {
            locked = channel.tryLock() != null;
        } catch (OverlappingFileLockException e) {
            throw FileProblems.inUse(name, "this process", part);
        } catch (IOException e) {
            throw FileProblems.unwritable(
                    name, "its file system cannot lock " + part + " (" + e.getMessage() + "); write to another disk");
        }
        if (!locked) {
            throw FileProblems.inUse(name, holder(part), part);
        }
    }

    /** Returns {@code process 1234}; {@code another process} if the system does not tell, as for one on another machine. */
    private static String holder(Path file) {
        try {
            String inode = ":" + Files.getAttribute(file, "unix:ino");
            List<String> holders = Files.readAllLines(LOCKS, StandardCharsets.US_ASCII).stream()
                    .map(line -> line.strip().split("\\s+"))
                    .filter(words -> words.length > FILE && words[FILE].endsWith(inode))
                    .map(words -> words[PROCESS])
                    .distinct()
                    .toList();
            // Files of two file systems may have the same inode, and a process outside this container shows as 0.
            if (holders.size() == 1 && Long.parseLong(holders.getFirst()) > 0) {
                return "process " + holders.getFirst();
            }
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException e) {
            return "another process";
        }
        return "another process";
    }

    /** Why a file cannot be written, each in one line that begins with its name. */
    static final class FileProblems {
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
}
