package dev.chagres.io;

import dev.chagres.internal.Checks;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.io.Checksums.HeaderBytes;
import dev.chagres.parameter.CodedState;
import java.io.Closeable;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.FileChannel.MapMode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * A safetensors file, open for reading. Opening it checks the whole header; the data is mapped into memory and read on demand.
 *
 * <p>An open file is not affected when its path is replaced by another file. Interrupting a thread that copies from it closes it.
 *
 * <p>Threading: thread-safe; a copy that is under way when the file is closed fails.
 *
 * <p>Source: the format as the Rust library safetensors 0.8 reads it: eight bytes with the header's length, the header in
 * JSON, the data.
 */
public final class SafetensorsFile implements AutoCloseable {
    private final Path path;
    /** Null for the folder of a checkpoint. */
    private final @Nullable FileChannel channel;
    /** Null for a file. */
    private final @Nullable CheckpointBytes folder;

    private final Arena arena;
    private final long dataBegin;
    /** Empty for the folder of a checkpoint. */
    private final MemorySegment data;

    private final Map<String, String> metadata;
    private final Map<String, SafetensorsEntry> byName = new LinkedHashMap<>();
    private final Map<String, SafetensorsEntry> entries = Collections.unmodifiableMap(byName);
    private final Leaks.@Nullable Trace trace;

    private SafetensorsFile(Path path, FileChannel channel) throws IOException {
        this.path = path;
        this.channel = channel;
        folder = null;
        long size = channel.size();
        int headerSize = headerSize(size);
        dataBegin = headerSize + (long) Header.LENGTH_BYTES;
        HeaderBytes.Source source = (position, buffer) -> fill(null, position, buffer);
        boolean hasChecksums = Checksums.check(path, source, dataBegin);
        HeaderBytes json = new HeaderBytes(source, Header.LENGTH_BYTES, headerSize);
        Header header = HeaderReader.read(path, json, size - dataBegin);
        Map<String, String> texts = new LinkedHashMap<>(header.metadata());
        texts.keySet().removeIf(key -> key.startsWith(Checksums.PREFIX));
        metadata = Collections.unmodifiableMap(texts);
        Iterator<String> checksums = hasChecksums
                ? Checksums.ofTensors(path, header.metadata(), header.entries().size())
                        .iterator()
                : Collections.emptyIterator();
        header.entries()
                .forEach(entry -> byName.put(
                        entry.name(),
                        new SafetensorsEntry(this, entry, checksums.hasNext() ? checksums.next() : null)));
        arena = Arena.ofShared();
        data = map(channel, size - dataBegin);
        trace = Leaks.opened("safetensors file " + path);
    }

    private SafetensorsFile(Path path, CheckpointBytes folder) {
        this.path = path;
        this.folder = folder;
        channel = null;
        dataBegin = 0;
        data = MemorySegment.NULL;
        metadata = Collections.unmodifiableMap(folder.metadata());
        folder.entries.forEach(entry -> byName.put(entry.name(), new SafetensorsEntry(this, entry, null)));
        arena = Arena.ofShared();
        trace = Leaks.opened("checkpoint " + path);
    }

    /**
     * Opens a file and checks its header; or the folder of a checkpoint, or of a run, whose last one it is.
     *
     * @throws SafetensorsException when it cannot be read, is no safetensors file, or is damaged. Its header lacks the checksum that {@link
     *     SafetensorsWriter#writeWithChecksums} has written, is no JSON, has fields other than the format's or a name twice, is longer than
     *     100 MB, or would need more than a quarter of the heap. Or tensors overlap, leave a gap, end behind the file, or do not have the
     *     bytes that type and shape need
     */
    public static SafetensorsFile open(Path file) {
        if (Files.isDirectory(Checks.given("file", file))) {
            return openFolder(CheckpointBytes.step(file));
        }
        if (!Files.isRegularFile(file)) {
            String seen = Files.exists(file) ? "no regular file" : "no such file";
            throw SafetensorsException.of(file, "expected a safetensors file, got " + seen, null);
        }
        FileChannel channel = null;
        SafetensorsFile opened = null;
        try {
            channel = FileChannel.open(file, StandardOpenOption.READ);
            opened = new SafetensorsFile(file, channel);
            return opened;
        } catch (IOException failure) {
            throw SafetensorsException.of(file, "could not be read: " + FileFailure.text(failure), failure);
        } finally {
            if (opened == null) {
                closeQuietly(channel);
            }
        }
    }

    /**
     * For states: opens a file whose states of eight bits are read as their ranks have them, whatever ranks have written it.
     *
     * @param states which tensors are codes and scales, and whose blocks they are to be
     * @throws SafetensorsException as {@link #open(Path)} does, or when there are scales without codes
     */
    public static SafetensorsFile open(Path file, List<CodedState> states) {
        List<CodedState> given = Checks.givenAll("states", states);
        SafetensorsFile opened = open(file);
        try {
            given.forEach(state -> RecodedState.replace(opened, state, opened.byName));
        } catch (SafetensorsException e) {
            opened.close();
            throw e;
        }
        return opened;
    }

    private static SafetensorsFile openFolder(Path step) {
        try {
            return new SafetensorsFile(step, CheckpointBytes.open(step));
        } catch (IOException failure) {
            throw SafetensorsException.of(step, "could not be read: " + FileFailure.text(failure), failure);
        }
    }

    /**
     * For checkpoints: returns the folder of a checkpoint, if {@code folder} is one, or that of the last checkpoint of the run whose folder it
     * is.
     *
     * @throws SafetensorsException when there is none
     */
    public static Path checkpoint(Path folder) {
        return CheckpointBytes.step(Checks.given("folder", folder));
    }

    /** For checkpoints: returns whether this process reads the folder of one. */
    public static boolean isRead(Path checkpoint) {
        try {
            return ReadFolder.isOpen(Checks.given("checkpoint", checkpoint));
        } catch (IOException absent) {
            return false;
        }
    }

    /** For checkpoints: throws if bytes of the folder are damaged that belong to no tensor of the state. Does nothing for a file. */
    public void verifyRest() {
        CheckpointBytes present = folder;
        if (present != null) {
            ensureOpen();
            present.verifyRest();
        }
    }

    private MemorySegment map(FileChannel mapped, long size) throws IOException {
        try {
            return mapped.map(MapMode.READ_ONLY, dataBegin, size, arena).asReadOnly();
        } catch (IOException failure) {
            arena.close();
            throw failure;
        }
    }

    private int headerSize(long size) throws IOException {
        if (size < Header.LENGTH_BYTES) {
            throw SafetensorsException.of(
                    path, "expected " + Header.LENGTH_BYTES + " bytes with the header's length, got " + size, null);
        }
        ByteBuffer length = ByteBuffer.allocate(Header.LENGTH_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        fill(null, 0, length);
        long headerSize = length.getLong(0);
        if (headerSize < 0 || headerSize > Header.MAX_BYTES) {
            throw SafetensorsException.of(
                    path,
                    "header: expected at most " + Header.MAX_BYTES + " bytes, got " + Long.toUnsignedString(headerSize)
                            + ": this may be no safetensors file",
                    null);
        }
        if (headerSize > size - Header.LENGTH_BYTES) {
            throw SafetensorsException.of(
                    path,
                    "header: expected " + headerSize + " bytes, got the " + (size - Header.LENGTH_BYTES)
                            + " that the file has: it is cut short",
                    null);
        }
        return Math.toIntExact(headerSize);
    }

    /** Returns the file, as it was named when it was opened. */
    public Path path() {
        return path;
    }

    /** Returns the metadata without the file's checksums, unmodifiable; empty if the file has none. */
    public Map<String, String> metadata() {
        return metadata;
    }

    /** Returns all tensors by name, unmodifiable, in the order of their data. */
    public Map<String, SafetensorsEntry> entries() {
        return entries;
    }

    /**
     * Returns the tensor of this name.
     *
     * @throws SafetensorsException when there is none
     */
    public SafetensorsEntry entry(String name) {
        SafetensorsEntry entry = entries.get(Checks.given("name", name));
        if (entry == null) {
            throw SafetensorsException.of(
                    path,
                    name,
                    "expected one of the file's " + entries.size() + " tensors, got none of this name",
                    null);
        }
        return entry;
    }

    /**
     * Returns the tensors that {@code expected} names, in its order, after a check that the file holds exactly these, each of the expected
     * type and shape. No data is read before.
     *
     * @param expected no name twice
     * @throws SafetensorsException when the file differs, with the numbers of its differences and the first 20 of each kind
     * @throws IllegalArgumentException when a name is expected twice
     */
    public List<SafetensorsEntry> entriesExactly(List<TensorSpec> expected) {
        ensureHolds(Checks.givenAll("expected", expected), entry -> false, Set.of());
        List<SafetensorsEntry> found = new ArrayList<>(expected.size());
        expected.forEach(spec -> found.add(entry(spec.name())));
        return Collections.unmodifiableList(found);
    }

    /**
     * Checks that the file holds what {@code expected} names, and otherwise only what {@code leftOut} accepts.
     *
     * @param weightsAlone names of the weights if only weights are loaded; empty when a run is resumed
     */
    void ensureHolds(List<TensorSpec> expected, Predicate<SafetensorsEntry> leftOut, Set<String> weightsAlone) {
        Differences differences = Differences.between(expected, entries, leftOut, weightsAlone);
        if (!differences.isEmpty()) {
            throw SafetensorsException.of(path, differences.text(), null);
        }
    }

    MemorySegment bytes(Header.Entry entry) {
        ensureOpen();
        if (folder != null) {
            MemorySegment copy = arena.allocate(entry.end() - entry.begin(), Long.BYTES);
            read(entry, 0, copy, null);
            return copy.asReadOnly();
        }
        return data.asSlice(entry.begin(), entry.end() - entry.begin());
    }

    /**
     * Reads through the file channel rather than the mapping: so a truncated file shows as end of file, and a disk fault as an exception,
     * while a mapping would fault at an undefined time.
     *
     * @param checksum updated by the bytes read, null for none
     */
    void read(Header.Entry entry, long offset, MemorySegment target, @Nullable CRC32C checksum) {
        ensureOpen();
        try {
            SegmentReader.read(target, (buffer, done) -> {
                fill(entry, dataBegin + entry.begin() + offset + done, buffer);
                if (checksum != null) {
                    checksum.update(buffer.flip());
                }
            });
        } catch (IOException failure) {
            throw SafetensorsException.of(
                    path, entry.name(), "could not be read: " + FileFailure.text(failure), failure);
        }
    }

    /**
     * Throws if one of these tensors is damaged, the first of them in the order of the file. Several threads read, for a checksum takes
     * longer than a copy of the bytes.
     */
    void verify(Set<String> names) {
        verifyRest();
        entries.values().parallelStream()
                .filter(entry -> names.contains(entry.name()))
                .map(SafetensorsEntry::damage)
                .flatMap(Optional::stream)
                .findFirst()
                .ifPresent(damage -> {
                    throw damage;
                });
    }

    /** Returns what is wrong with bytes of a tensor of a folder; empty for those of a file. */
    Optional<SafetensorsException> damage(Header.Entry entry, long offset, long bytes) {
        CheckpointBytes present = folder;
        if (present == null) {
            return Optional.empty();
        }
        ensureOpen();
        return present.damage(entry.begin() + offset, entry.begin() + offset + bytes);
    }

    private void fill(Header.@Nullable Entry entry, long position, ByteBuffer buffer) throws IOException {
        long next = position;
        while (buffer.hasRemaining()) {
            int count = folder != null
                    ? folder.read(buffer, next)
                    : Objects.requireNonNull(channel).read(buffer, next);
            if (count < 0) {
                String text = "the file ends at byte " + next + ": it has become shorter since it was opened";
                throw entry == null
                        ? SafetensorsException.of(path, text, null)
                        : SafetensorsException.of(path, entry.name(), text, null);
            }
            next += count;
        }
    }

    private void ensureOpen() {
        if (!arena.scope().isAlive()) {
            throw new IllegalStateException("safetensors file " + path + " is closed");
        }
    }

    /**
     * Closes the file; memory from {@link SafetensorsEntry#bytes()} can no longer be read. A second call does nothing.
     *
     * @throws IllegalStateException while another thread reads such memory through a call that holds it
     */
    @Override
    public synchronized void close() {
        if (arena.scope().isAlive()) {
            arena.close();
            closeQuietly(channel);
            closeQuietly(folder);
            Leaks.closed(trace);
        }
    }

    /** Nothing was written, so nothing is lost when closing fails. */
    private static void closeQuietly(@Nullable Closeable opened) {
        try {
            if (opened != null) {
                opened.close();
            }
        } catch (IOException unimportant) {
            // See above.
        }
    }

    @Override
    public String toString() {
        return "SafetensorsFile " + path + " with " + entries.size() + " tensors";
    }
}
