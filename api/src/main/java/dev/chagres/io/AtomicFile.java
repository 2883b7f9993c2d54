package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import dev.chagres.io.PartFileLock.FileProblems;
import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;

/**
 * A file that appears under its name only when it is complete, such as the report of a training run.
 *
 * <p>Bytes are appended to {@code NAME.part}, and {@link #publish} renames that file to {@code NAME}; an older file of that name is not
 * changed until then. {@code NAME.part} is locked, so that a second process which wants to write the same file is refused; the operating
 * system releases the lock however the process ends. A symbolic link stays a link: the file that it points to is replaced. A pipe or a
 * device is written to directly, without a lock.
 *
 * <p>Every failure is an {@link UncheckedIOException} with a text of one line: {@code NAME: cannot be written: reason}.
 *
 * <p>Threading: one thread at a time.
 */
public final class AtomicFile implements AutoCloseable {
    /** No system follows more. */
    private static final int MOST_LINKS = 40;

    private static final Path DEVICES = Path.of("/dev");
    private static final Path PROCESSES = Path.of("/proc");

    private final Path name;
    /** The name, or the file that it is a link to. */
    private final Path whole;

    private final Path written;
    private final FileChannel channel;
    /** The channel, or the part that it belongs to. */
    private final Closeable opened;

    private long wholeBytes;
    private boolean ended;

    private AtomicFile(Path name, Path whole, Path written, FileChannel channel, Closeable opened) {
        this.name = name;
        this.whole = whole;
        this.written = written;
        this.channel = channel;
        this.opened = opened;
    }

    /**
     * Opens {@code NAME.part}, empty.
     *
     * @param name the final name of the file
     * @throws UncheckedIOException when the file cannot be made, is a directory, or another process writes it at present
     */
    public static AtomicFile create(Path name) {
        Checks.given("name", name);
        if (Files.isDirectory(name)) {
            throw FileProblems.unwritable(name, "it is a directory; name a file");
        }
        try {
            if (isDirect(name)) {
                FileChannel channel = openDirect(name);
                return new AtomicFile(name, name, name, channel, channel);
            }
            if (Files.isSymbolicLink(name) && !Files.exists(name)) {
                throw FileProblems.unwritable(name, "it is a link that leads to no file");
            }
            Path whole = Files.isSymbolicLink(name) ? name.toRealPath() : name;
            Path part = part(whole);
            PartFileLock locked = PartFileLock.open(name, part);
            return new AtomicFile(name, whole, part, locked.channel, locked);
        } catch (IOException e) {
            throw FileProblems.unwritable(name, e);
        }
    }

    /**
     * Returns whether bytes are written directly to a file of this name, because it cannot be replaced: a pipe, a device, or a name in {@code
     * /dev} or {@code /proc}, or a link to one. In folders of {@code /dev} that hold files, such as {@code /dev/shm}, a file is a file.
     */
    public static boolean isDirect(Path name) {
        Path next = Checks.given("name", name).toAbsolutePath().normalize();
        try {
            for (int links = 0; links < MOST_LINKS; links++) {
                Path parent = next.getParent();
                Path folder = parent == null ? next : parent.toRealPath();
                if (folder.equals(DEVICES) || folder.startsWith(PROCESSES)) {
                    return true;
                }
                if (!Files.isSymbolicLink(next)) {
                    break;
                }
                next = folder.resolve(Files.readSymbolicLink(next)).normalize();
            }
        } catch (IOException absent) {
            return false; // Nothing can be written there, which whoever tries is told.
        }
        return Files.exists(name) && !Files.isRegularFile(name);
    }

    /**
     * Returns the name of a file until it is complete: {@code NAME.part}.
     *
     * @throws IllegalArgumentException when the path ends with no name, as {@code /} does
     */
    public static Path part(Path name) {
        if (Checks.given("name", name).getFileName() == null) {
            throw new IllegalArgumentException(
                    "name: expected a path that ends with the name of a file, got " + ForeignText.plain(name));
        }
        return name.resolveSibling(name.getFileName() + ".part");
    }

    private static FileChannel openDirect(Path name) throws IOException {
        if (!Files.exists(name)) {
            throw FileProblems.unwritable(name, "there is no such device, and no file can be made there");
        }
        if (Files.isRegularFile(name)) {
            // Two writers, each with its own position in the file, would overwrite each other.
            throw FileProblems.unwritable(
                    name,
                    "it is a second name of a file that may be in use; give that file's own name, another file, or"
                            + " a pipe");
        }
        return FileChannel.open(name, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    }

    /**
     * Appends bytes at once and completely: when the disk is full and only a part can be written, that part is removed again, unless this
     * is a pipe or a device.
     *
     * @throws UncheckedIOException when they cannot be written
     * @throws IllegalStateException after {@link #publish}, {@link #discard} or {@link #close}
     */
    public void append(byte[] bytes) {
        requireOpen();
        ByteBuffer rest = ByteBuffer.wrap(Checks.given("bytes", bytes));
        try {
            while (rest.hasRemaining()) {
                channel.write(rest);
            }
            wholeBytes += bytes.length;
        } catch (IOException e) {
            UncheckedIOException failure = FileProblems.unwritable(name, e);
            if (!written.equals(name)) {
                try {
                    channel.truncate(wholeBytes);
                } catch (IOException second) {
                    failure.addSuppressed(second);
                }
            }
            throw failure;
        }
    }

    /** Returns the file that holds the bytes until {@link #publish}. */
    public Path written() {
        return written;
    }

    /**
     * Forces the bytes to the disk and renames the file to its final name, replacing an older file.
     *
     * @throws UncheckedIOException when that fails; the bytes are then in {@link #written}
     * @throws IllegalStateException when the file was published, discarded or closed before
     */
    public void publish() {
        requireOpen();
        try {
            if (!written.equals(whole)) {
                channel.force(true);
                if (!Files.exists(written)) {
                    throw FileProblems.unwritable(name, written + " was moved or deleted before it was whole");
                }
                // Closing the channel releases the lock: no other process may open the part before it is renamed.
                Files.move(written, whole, StandardCopyOption.ATOMIC_MOVE);
            }
            close();
        } catch (IOException e) {
            throw FileProblems.unwritable(name, e);
        }
    }

    /**
     * Removes the part; an older file of the name is not changed. Does nothing when the file was published, discarded or closed before.
     *
     * @throws UncheckedIOException when it cannot be removed
     */
    public void discard() {
        if (ended) {
            return;
        }
        try {
            if (!written.equals(whole)) {
                Files.deleteIfExists(written);
            }
        } catch (IOException e) {
            throw FileProblems.unwritable(name, e);
        } finally {
            close();
        }
    }

    /**
     * Closes the file and releases the lock; a file that was not published keeps its {@code .part} name. A second call does nothing.
     *
     * @throws UncheckedIOException when the last bytes cannot be written
     */
    @Override
    public void close() {
        if (ended) {
            return;
        }
        ended = true;
        try {
            opened.close();
        } catch (IOException e) {
            throw FileProblems.unwritable(name, e);
        }
    }

    private void requireOpen() {
        if (ended) {
            throw new IllegalStateException(name + ": was published, discarded or closed already");
        }
    }
}
