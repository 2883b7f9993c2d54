package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.BlockSums;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.Manifest;
import java.io.Closeable;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Objects;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Stream;

/**
 * The tensors and numbers of a checkpoint's folder, as if they lay one after another in one file.
 *
 * <p>Threading: thread-safe.
 */
final class CheckpointBytes implements Closeable {
    /** Names the folder of the last checkpoint of a run. */
    static final String LATEST = "latest";

    private static final String STEP = "step-";

    private final Path folder;
    private final Manifest manifest;
    private final ReadFolder held;
    private final Map<String, FileChannel> channels = new HashMap<>();
    /** Tensors, then numbers. */
    final List<Header.Entry> entries = new ArrayList<>();
    /** What begins at each place. */
    private final NavigableMap<Long, Piece> pieces = new TreeMap<>();

    private long size;

    /**
     * Consecutive bytes.
     *
     * @param tensor which has them
     * @param range of a file; null where they are {@code inline}
     */
    private record Piece(String tensor, Manifest.Range range, byte[] inline) {
        long bytes() {
            return inline.length == 0 ? range.bytes() : inline.length;
        }
    }

    private static final byte[] NOT_INLINE = {};
    private static final Manifest.Range INLINE = new Manifest.Range("", 0, Manifest.NAME, 0, 0);

    private CheckpointBytes(Path folder, ReadFolder held, Manifest manifest) {
        this.folder = folder;
        this.held = held;
        this.manifest = manifest;
        manifest.tensors().forEach(this::add);
        manifest.beside().forEach((name, whole) -> whole.ranges().forEach(range -> place(name, range, NOT_INLINE)));
        manifest.numbers().forEach((name, value) -> {
            byte[] bytes = ByteBuffer.allocate(Long.BYTES)
                    .order(ByteOrder.LITTLE_ENDIAN)
                    .putLong(value)
                    .array();
            entries.add(new Header.Entry(name, SafetensorsType.I64, new long[0], size, size + bytes.length));
            place(name, INLINE, bytes);
        });
    }

    private void add(String name, Manifest.Whole whole) {
        Path file = folder.resolve(Manifest.NAME);
        long begin = size;
        whole.ranges().forEach(range -> place(name, range, NOT_INLINE));
        Header.Entry entry = new Header.Entry(
                name,
                SafetensorsType.named(whole.type())
                        .orElseThrow(() -> SafetensorsException.of(
                                file, name, "dtype: expected one of safetensors, got " + whole.type(), null)),
                whole.shape(),
                begin,
                size);
        Header.checkSize(file, entry);
        entries.add(entry);
    }

    private void place(String name, Manifest.Range range, byte[] inline) {
        Piece piece = new Piece(name, range, inline);
        if (piece.bytes() > 0) {
            pieces.put(size, piece);
            size += piece.bytes();
        }
    }

    /**
     * Returns the folder of a checkpoint: {@code folder}, or that of the last one if this is the folder of a run.
     *
     * @throws SafetensorsException when there is none
     */
    static Path step(Path folder) {
        if (Files.exists(folder.resolve(Manifest.NAME))) {
            return folder;
        }
        try {
            Path latest = folder.resolve(LATEST);
            if (Files.isRegularFile(latest)) {
                String name =
                        Files.readString(latest, StandardCharsets.ISO_8859_1).strip();
                if (!name.startsWith(STEP) || name.contains("/")) {
                    throw SafetensorsException.of(
                            latest, "expected the name of a folder beside it, got " + ForeignText.quoted(name), null);
                }
                if (Files.exists(folder.resolve(name).resolve(Manifest.NAME))) {
                    return folder.resolve(name);
                }
            }
            // A program that was killed had published a checkpoint before it could say so here.
            try (Stream<Path> files = Files.list(folder)) {
                Optional<Path> last = files.filter(
                                file -> file.getFileName().toString().startsWith(STEP)
                                        && Files.exists(file.resolve(Manifest.NAME)))
                        .max(Comparator.naturalOrder());
                if (last.isPresent()) {
                    return last.get();
                }
            }
        } catch (IOException failure) {
            throw SafetensorsException.of(folder, "could not be read: " + FileFailure.text(failure), failure);
        }
        throw SafetensorsException.of(
                folder,
                "expected a safetensors file, or the folder of a checkpoint, which has " + Manifest.NAME
                        + ", got a folder without it",
                null);
    }

    /** Opens the folder of a checkpoint, after a look at its manifest and at the sizes of its files. */
    static CheckpointBytes open(Path folder) throws IOException {
        Path file = folder.resolve(Manifest.NAME);
        ReadFolder held = ReadFolder.open(folder);
        try {
            CheckpointBytes opened = new CheckpointBytes(folder, held, Manifest.of(held.manifest()));
            try {
                opened.openFiles();
                return opened;
            } catch (IOException | RuntimeException failure) {
                opened.closeFiles();
                throw failure;
            }
        } catch (Manifest.InvalidException invalid) {
            held.close();
            throw SafetensorsException.of(file, ForeignText.plain(String.valueOf(invalid.getMessage())), invalid);
        } catch (IOException | RuntimeException failure) {
            held.close();
            throw failure;
        }
    }

    private void openFiles() throws IOException {
        for (Map.Entry<String, Manifest.Content> file : manifest.files().entrySet()) {
            Path path = folder.resolve(file.getKey());
            if (!Files.isRegularFile(path)) {
                throw SafetensorsException.of(path, "expected a file that " + Manifest.NAME + " names, got none", null);
            }
            FileChannel channel = FileChannel.open(path, StandardOpenOption.READ);
            channels.put(file.getKey(), channel);
            if (channel.size() != file.getValue().bytes()) {
                throw SafetensorsException.of(
                        path,
                        "expected " + file.getValue().bytes() + " bytes, got " + channel.size()
                                + ": damaged since it was written",
                        null);
            }
        }
    }

    Map<String, String> metadata() {
        return manifest.metadata();
    }

    /** Reads some bytes from {@code position} on; -1 if there are no more. */
    int read(ByteBuffer buffer, long position) throws IOException {
        Map.Entry<Long, Piece> at = pieces.floorEntry(position);
        if (at == null || position >= at.getKey() + at.getValue().bytes()) {
            return -1;
        }
        Piece piece = at.getValue();
        long offset = position - at.getKey();
        int count = (int) Math.min(buffer.remaining(), piece.bytes() - offset);
        if (piece.inline.length > 0) {
            buffer.put(piece.inline, (int) offset, count);
            return count;
        }
        int limit = buffer.limit();
        buffer.limit(buffer.position() + count);
        int read = channel(piece).read(buffer, piece.range.position() + offset);
        buffer.limit(limit);
        return read;
    }

    private FileChannel channel(Piece piece) {
        return Objects.requireNonNull(channels.get(piece.range.file()));
    }

    /** Returns what is wrong with bytes from {@code begin} to before {@code end}: the blocks that they lie in are read. */
    Optional<SafetensorsException> damage(long begin, long end) {
        Map.Entry<Long, Piece> at = begin < end ? pieces.floorEntry(begin) : null;
        while (at != null && at.getKey() < end) {
            Piece piece = at.getValue();
            if (piece.inline.length == 0) {
                long first = Math.max(0, begin - at.getKey()) / BlockSums.BLOCK_BYTES;
                long last = (Math.min(end - at.getKey(), piece.bytes()) - 1) / BlockSums.BLOCK_BYTES;
                for (long block = first; block <= last; block++) {
                    Optional<SafetensorsException> found = damage(
                            piece.range.file(),
                            Optional.of(piece.tensor),
                            piece.range.position() + block * BlockSums.BLOCK_BYTES,
                            Math.min(BlockSums.BLOCK_BYTES, piece.bytes() - block * BlockSums.BLOCK_BYTES),
                            piece.range.sums()[(int) block]);
                    if (found.isPresent()) {
                        return found;
                    }
                }
            }
            at = pieces.higherEntry(at.getKey());
        }
        return Optional.empty();
    }

    /** Throws if bytes are damaged that belong to no tensor of the state: of headers, of other files, of further tensors. */
    void verifyRest() {
        manifest.files().forEach((name, content) -> {
            for (int block = 0; block < content.sums().length; block++) {
                long first = block * BlockSums.BLOCK_BYTES;
                damage(
                                name,
                                Optional.empty(),
                                first,
                                Math.min(BlockSums.BLOCK_BYTES, content.head() - first),
                                content.sums()[block])
                        .ifPresent(CheckpointBytes::fail);
            }
        });
        pieces.forEach((begin, piece) -> {
            if (manifest.beside().containsKey(piece.tensor)) {
                damage(begin, begin + piece.bytes()).ifPresent(CheckpointBytes::fail);
            }
        });
    }

    private static void fail(SafetensorsException damage) {
        throw damage;
    }

    private Optional<SafetensorsException> damage(
            String name, Optional<String> tensor, long position, long bytes, int sum) {
        Path file = folder.resolve(name);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment block = arena.allocate(bytes);
            ByteBuffer buffer = block.asByteBuffer();
            FileChannel channel = Objects.requireNonNull(channels.get(name));
            while (buffer.hasRemaining()) {
                if (channel.read(buffer, position + buffer.position()) < 0) {
                    return Optional.of(of(file, tensor, "the file ends before its last byte: it has become shorter"));
                }
            }
            int got = BlockSums.of(block);
            return got == sum
                    ? Optional.empty()
                    : Optional.of(of(file, tensor, Manifest.damaged(BlockSums.digits(got))));
        } catch (IOException failure) {
            return Optional.of(of(file, tensor, "could not be read: " + FileFailure.text(failure)));
        }
    }

    private static SafetensorsException of(Path file, Optional<String> tensor, String text) {
        return tensor.isPresent()
                ? SafetensorsException.of(file, tensor.get(), text, null)
                : SafetensorsException.of(file, text, null);
    }

    private void closeFiles() throws IOException {
        for (FileChannel channel : channels.values()) {
            channel.close();
        }
        channels.clear();
    }

    @Override
    public void close() throws IOException {
        closeFiles();
        held.close();
    }
}
