package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import dev.chagres.internal.FileFailure;
import dev.chagres.internal.FileReplacement;
import dev.chagres.io.SafetensorsLayout.HeaderWriter;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.zip.CRC32C;

/**
 * Writes safetensors files.
 *
 * <p>Threading: thread-safe.
 *
 * <p>Source: the format as the Rust library safetensors 0.8 writes it: tensors of large elements first, a header padded with spaces so that
 * the data begins at a multiple of eight.
 */
public final class SafetensorsWriter {
    /** How many bytes of a tensor are in host memory at a time; a multiple of every element's size. */
    private static final long PIECE = 32L << 20;

    private static final String PREFIX = ".safetensors-";

    private SafetensorsWriter() {}

    /**
     * Writes or replaces a file atomically. The new file is written in the same folder, under a name that begins with {@code
     * .safetensors-}, forced to the disk, and renamed: at every instant the path has the whole old file or the whole new one, and programs
     * that have the old one open keep it. When the method returns, the new file is on the disk.
     *
     * <p>The same arguments give the same bytes: tensors are sorted by the size of their elements, the largest first, else kept in the
     * given order; metadata is sorted by key.
     *
     * @param tensors no name twice
     * @param metadata texts by key, for readers
     * @throws IllegalArgumentException when a name comes twice, a text has half a surrogate pair, a key begins with {@code
     *     chagres.crc32c.}, or there are so many names that the header would be longer than 100 MB
     * @throws SafetensorsException when the file cannot be written: the disk is full, the folder is missing or may not be
     *     written; the old file is then unchanged. Exceptions of sources are passed on
     */
    public static void write(Path file, List<? extends TensorSource> tensors, Map<String, String> metadata) {
        write(file, tensors, metadata, false);
    }

    /**
     * Writes as {@link #write} does, with checksums in the metadata, which {@link SafetensorsFile#open} and loading compare. Other programs
     * read the file as any other.
     *
     * @param tensors no name twice
     * @param metadata texts by key, for readers
     * @throws IllegalArgumentException as {@link #write} does
     * @throws SafetensorsException as {@link #write} does
     */
    public static void writeWithChecksums(
            Path file, List<? extends TensorSource> tensors, Map<String, String> metadata) {
        write(file, tensors, metadata, true);
    }

    /**
     * Tries whether a file of this name can be written or replaced, which stays as it is.
     *
     * @throws SafetensorsException when it cannot: the folder is missing or may not be written, the name is too long, or the file may not be
     *     replaced
     */
    public static void tryOut(Path file) {
        place(Checks.given("file", file), () -> FileReplacement.tryOut(file, PREFIX));
    }

    private static void write(
            Path file, List<? extends TensorSource> tensors, Map<String, String> metadata, boolean withChecksums) {
        Checks.given("file", file);
        List<Planned> planned = Checks.<TensorSource>givenAll("tensors", tensors).stream()
                .map(source -> new Planned(Checks.given("spec", source.spec()), source))
                .sorted(Comparator.comparing(Planned::spec, SafetensorsLayout.ORDER))
                .toList();
        List<TensorSpec> specs = planned.stream().map(Planned::spec).toList();
        checkNames(specs);
        checkMetadata(metadata);
        Map<String, String> texts = new HashMap<>(metadata);
        if (withChecksums) {
            texts.putAll(Checksums.unknown(specs.size()));
        }
        ByteBuffer header = HeaderWriter.bytes(specs, texts);
        place(
                file,
                () -> FileReplacement.write(file, PREFIX, channel -> {
                    write(channel, header.duplicate());
                    List<CRC32C> checksums = write(file, channel, planned);
                    if (withChecksums) {
                        Checksums.put(header, checksums);
                        write(channel.position(0), header);
                    }
                }));
    }

    /** Returns a checksum of each tensor's bytes. */
    private static List<CRC32C> write(Path file, FileChannel channel, List<Planned> planned) {
        long largest = planned.stream()
                .mapToLong(tensor -> tensor.spec().byteSize())
                .max()
                .orElse(0);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment piece = arena.allocate(Math.min(PIECE, largest), Long.BYTES);
            return planned.stream()
                    .map(tensor -> write(file, channel, tensor, piece))
                    .toList();
        }
    }

    private interface Placing {
        void run() throws IOException;
    }

    private static void place(Path file, Placing placing) {
        try {
            placing.run();
        } catch (FileReplacement.PlaceException unfit) {
            throw SafetensorsException.of(file, String.valueOf(unfit.getMessage()), null);
        } catch (IOException failure) {
            throw SafetensorsException.of(file, "could not be written: " + FileFailure.text(failure), failure);
        }
    }

    /** A source with its spec, asked for once. */
    private record Planned(TensorSpec spec, TensorSource source) {}

    static void checkNames(List<TensorSpec> specs) {
        Set<String> names = new HashSet<>();
        long byteSize = 0;
        for (TensorSpec spec : specs) {
            if (!names.add(spec.name())) {
                throw new IllegalArgumentException(
                        "tensors: expected each name once, got " + ForeignText.quoted(spec.name()) + " twice");
            }
            try {
                byteSize = Math.addExact(byteSize, spec.byteSize());
            } catch (ArithmeticException tooMany) {
                throw new IllegalArgumentException(
                        "tensors: expected fewer bytes in all than a long can count, got more with " + spec, tooMany);
            }
        }
    }

    static void checkMetadata(Map<String, String> metadata) {
        Checks.given("metadata", metadata).forEach((key, value) -> {
            Checks.given("metadata: a key", key);
            Checks.given("metadata: the text of " + ForeignText.quoted(key), value);
            if (!Names.isUnicode(key) || !Names.isUnicode(value)) {
                throw new IllegalArgumentException(
                        "metadata: expected texts that UTF-8 can hold, got half a surrogate pair in "
                                + ForeignText.quoted(key));
            }
            if (key.startsWith(Checksums.PREFIX)) {
                throw new IllegalArgumentException("metadata: expected keys that do not begin with " + Checksums.PREFIX
                        + ", which name the file's own checksums, got " + ForeignText.quoted(key));
            }
            if (key.length() > Names.MAX_LENGTH) {
                throw new IllegalArgumentException("metadata: expected keys of at most " + Names.MAX_LENGTH
                        + " characters, got " + ForeignText.quoted(key));
            }
        });
    }

    private static CRC32C write(Path file, FileChannel channel, Planned tensor, MemorySegment piece) {
        CRC32C checksum = new CRC32C();
        long byteSize = tensor.spec().byteSize();
        try {
            for (long offset = 0; offset < byteSize; offset += piece.byteSize()) {
                MemorySegment part = piece.asSlice(0, Math.min(piece.byteSize(), byteSize - offset));
                tensor.source().copyTo(offset, part);
                checksum.update(part.asByteBuffer());
                write(channel, part.asByteBuffer());
            }
            return checksum;
        } catch (IOException failure) {
            throw SafetensorsException.of(
                    file, tensor.spec().name(), "could not be written: " + FileFailure.text(failure), failure);
        }
    }

    private static void write(FileChannel channel, ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
    }
}
