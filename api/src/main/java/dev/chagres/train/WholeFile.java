package dev.chagres.train;

import dev.chagres.internal.Checks;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;

/**
 * A file that appears under its name only when it is whole, such as the report of a training run.
 *
 * <p>What is appended goes to {@code NAME.part}, and {@link #publish} gives that file the name; an older file of the name
 * stays as it is until then. {@code NAME.part} is locked, so that a second process which wants to write the same file is
 * refused, and the system gives the lock back whichever way a process ends. A symbolic link stays a link: the file that it
 * leads to is replaced. A pipe or a device is written to directly, without a lock.
 *
 * <p>Whatever fails is an {@link UncheckedIOException} whose text is one line: {@code NAME: cannot be written: reason}.
 *
 * <p>Threading: one thread at a time.
 */
public final class WholeFile implements AutoCloseable {
    private final Path name;
    /** The name, or the file that it is a link to. */
    private final Path whole;

    private final Path written;
    private final FileChannel channel;
    private long wholeBytes;
    private boolean ended;

    private WholeFile(Path name, Path whole, Path written, FileChannel channel) {
        this.name = name;
        this.whole = whole;
        this.written = written;
        this.channel = channel;
    }

    /**
     * Opens {@code NAME.part}, empty.
     *
     * @param name what the file is to be called
     * @throws UncheckedIOException when the file cannot be made, is a directory, or another process writes it at present
     */
    public static WholeFile create(Path name) {
        Checks.given("name", name);
        if (Files.isDirectory(name)) {
            throw FileProblems.unwritable(name, "it is a directory; name a file");
        }
        try {
            if (isDirect(name)) {
                return new WholeFile(name, name, name, openDirect(name));
            }
            if (Files.isSymbolicLink(name) && !Files.exists(name)) {
                throw FileProblems.unwritable(name, "it is a link that leads to no file");
            }
            Path whole = Files.isSymbolicLink(name) ? name.toRealPath() : name;
            Path part = part(whole);
            return new WholeFile(name, whole, part, LockedPart.open(name, part));
        } catch (IOException e) {
            throw FileProblems.unwritable(name, e);
        }
    }

    /**
     * Whether what is appended to a file of this name goes straight to where it leads: to a pipe or a device, or, for a path
     * into {@code /dev} or {@code /proc}, to whatever is there. Nothing of that kind can be replaced by a whole file.
     */
    public static boolean isDirect(Path name) {
        Path absolute = Checks.given("name", name).toAbsolutePath().normalize();
        return absolute.startsWith("/dev")
                || absolute.startsWith("/proc")
                || (Files.exists(name) && !Files.isRegularFile(name));
    }

    /**
     * Returns what a file is called until it is whole: {@code NAME.part}.
     *
     * @throws IllegalArgumentException when the path ends with no name, as {@code /} does
     */
    public static Path part(Path name) {
        if (Checks.given("name", name).getFileName() == null) {
            throw new IllegalArgumentException("name: expected a path that ends with the name of a file, got " + name);
        }
        return name.resolveSibling(name.getFileName() + ".part");
    }

    private static FileChannel openDirect(Path name) throws IOException {
        if (Files.isRegularFile(name)) {
            // Two writers, each with its own place in the file, would write over each other.
            throw FileProblems.unwritable(
                    name,
                    "it is a second name of a file that may be in use; give that file's own name, another file, or"
                            + " a pipe");
        }
        return FileChannel.open(name, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    }

    /**
     * Appends bytes, at once and in one piece: when a full disk takes a part of them, that part is taken away again, unless
     * this is a pipe or a device.
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
     * Gives the file its name, in place of an older file of that name, once its bytes are on the disk.
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
                // The lock goes with the channel: until the file has its name, nobody else may take it for a part.
                Files.move(written, whole, StandardCopyOption.ATOMIC_MOVE);
            }
            close();
        } catch (IOException e) {
            throw FileProblems.unwritable(name, e);
        }
    }

    /**
     * Removes what was written, as if this object had never been made; an older file of the name stays. Nothing happens when
     * the file was published, discarded or closed before.
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
     * Closes the file and gives the lock back; what was not published keeps its {@code .part} name. A second call does
     * nothing.
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
            channel.close();
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
