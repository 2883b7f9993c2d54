package dev.chagres.io;

import dev.chagres.internal.Manifest;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;

/**
 * The folder of a checkpoint that is being read: its manifest is locked, shared with others that read, until the last reader of this process
 * closes it. Where the file system has no locks, folders are read all the same.
 *
 * <p>Threading: thread-safe.
 */
final class ReadFolder implements Closeable {
    /** To close a second channel of this process would release the lock of the first. */
    private static final Map<Path, ReadFolder> OPEN = new HashMap<>();

    private final Path folder;
    private final FileChannel channel;
    private int readers;

    private ReadFolder(Path folder, FileChannel channel) {
        this.folder = folder;
        this.channel = channel;
    }

    static ReadFolder open(Path folder) throws IOException {
        Path own = folder.toRealPath();
        synchronized (OPEN) {
            ReadFolder present = OPEN.get(own);
            if (present == null) {
                present = new ReadFolder(own, FileChannel.open(own.resolve(Manifest.NAME), StandardOpenOption.READ));
                present.lock();
                OPEN.put(own, present);
            }
            present.readers++;
            return present;
        }
    }

    /** Returns whether this process reads a folder. */
    static boolean isOpen(Path folder) throws IOException {
        synchronized (OPEN) {
            return OPEN.containsKey(folder.toRealPath());
        }
    }

    private void lock() {
        try {
            var _ = channel.tryLock(0, Long.MAX_VALUE, true);
        } catch (IOException | OverlappingFileLockException none) {
            // Nobody could lock it to remove it, either.
        }
    }

    byte[] manifest() throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(Math.toIntExact(channel.size()));
        while (bytes.hasRemaining() && channel.read(bytes, bytes.position()) >= 0) {
            // Reading is all.
        }
        return bytes.array();
    }

    @Override
    public void close() throws IOException {
        synchronized (OPEN) {
            if (--readers == 0) {
                OPEN.remove(folder);
                channel.close();
            }
        }
    }
}
