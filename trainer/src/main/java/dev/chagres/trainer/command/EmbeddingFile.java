package dev.chagres.trainer.command;

import com.fasterxml.jackson.jr.ob.JSON;
import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.bindings.ForeignText;
import dev.chagres.io.AtomicFile;
import dev.chagres.io.SafetensorsWriter;
import dev.chagres.io.TensorSource;
import dev.chagres.io.TensorSpec;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Embeddings on their way into a file. Until it is whole, rows of numbers lie in {@code FILE.rows.part}, and what they belong to in {@code
 * FILE.jsonl.part}: a line of the options, then one of each protein. A command that is started again goes on behind the last whole line.
 *
 * <p>Threading: one thread at a time.
 */
final class EmbeddingFile implements AutoCloseable {
    private static final int PIECE = 1 << 20;
    private static final int NPY_ALIGNMENT = 64;
    /** The header of a safetensors file has room for about as many names. */
    private static final int MOST_TENSORS = 1_000_000;

    /** How the rows are named in the file. */
    enum Rows {
        /** One a protein. */
        MEAN,
        /** One a protein. */
        CLS,
        /** One a residue. */
        TOKENS;

        /** Reads the option. */
        static final class Words extends EnumOption<Rows> {
            Words() {
                super(Rows.class);
            }
        }
    }

    /** A protein whose rows are there. */
    private record Placed(String id, long row, long rows) {}

    private final Path file;
    private final Path rowsPart;
    private final Path indexPart;
    private final Rows rows;
    private final int columns;
    private final FileChannel values;
    private final FileChannel index;
    private final List<Placed> placed = new ArrayList<>();
    private final List<byte[]> lines = new ArrayList<>();
    private long rowCount;

    /**
     * Opens the parts of a file, and goes on where an earlier command with the same options was ended.
     *
     * @param columns numbers of a row
     * @param options all that the rows follow from
     * @throws CommandFailure when another command writes the file, or there are parts of one with other options
     * @throws IllegalArgumentException when the name says no format
     */
    EmbeddingFile(Path file, Rows rows, int columns, Map<String, Object> options) throws IOException {
        this.file = file;
        this.rows = rows;
        this.columns = columns;
        requireFormat(file, ".safetensors", ".npy", ".parquet");
        rowsPart = beside(".rows.part");
        indexPart = beside(".jsonl.part");
        index = FileChannel.open(
                indexPart, StandardOpenOption.READ, StandardOpenOption.WRITE, StandardOpenOption.CREATE);
        FileChannel opened = null;
        try {
            lock();
            opened = FileChannel.open(
                    rowsPart, StandardOpenOption.READ, StandardOpenOption.WRITE, StandardOpenOption.CREATE);
            values = opened;
            begin(JSON.std.asString(options) + "\n");
        } catch (IOException | RuntimeException failure) {
            index.close();
            if (opened != null) {
                opened.close();
            }
            throw failure;
        }
    }

    /**
     * Refuses a name that says no format.
     *
     * @param endings that say one, two or more
     * @throws IllegalArgumentException when it has none of them
     */
    static void requireFormat(Path file, String... endings) {
        FileChecks.requireName("--out", file);
        String name = file.toString().toLowerCase(Locale.ROOT);
        if (Arrays.stream(endings).noneMatch(name::endsWith)) {
            List<String> all = List.of(endings);
            throw new IllegalArgumentException(
                    "--out: expected a name that ends with " + String.join(", ", all.subList(0, all.size() - 1))
                            + " or " + all.getLast() + ", got " + ForeignText.plain(file.toString()));
        }
        if (AtomicFile.isDirect(file)) {
            throw new IllegalArgumentException("--out: expected a file, got the device or pipe " + file);
        }
    }

    private Path beside(String end) {
        return file.resolveSibling(file.getFileName() + end);
    }

    private void lock() throws IOException {
        try {
            if (index.tryLock() != null) {
                return;
            }
        } catch (OverlappingFileLockException e) {
            // Another thread of this process has it.
        }
        throw new CommandFailure("--out: another command writes " + file + " at present");
    }

    private void begin(String first) throws IOException {
        String text = new String(read(index), StandardCharsets.UTF_8);
        if (text.indexOf('\n') < 0) {
            restart(first);
            return;
        }
        if (!text.startsWith(first)) {
            throw new CommandFailure(
                    "--out: " + indexPart
                            + " is of an earlier command with other options, model or proteins; remove it, or name another file");
        }
        long position = first.getBytes(StandardCharsets.UTF_8).length;
        for (String line : text.substring(first.length()).split("(?<=\n)")) {
            Placed next = line.endsWith("\n") ? placed(line) : null;
            if (next == null || next.row() != rowCount || (rowCount + next.rows()) * rowBytes() > values.size()) {
                break;
            }
            placed.add(next);
            rowCount += next.rows();
            position += line.getBytes(StandardCharsets.UTF_8).length;
        }
        index.truncate(position);
        index.position(position);
        values.truncate(rowCount * rowBytes());
        values.position(rowCount * rowBytes());
    }

    private void restart(String first) throws IOException {
        index.truncate(0);
        index.position(0);
        write(index, first.getBytes(StandardCharsets.UTF_8));
        values.truncate(0);
    }

    private static byte[] read(FileChannel channel) throws IOException {
        byte[] all = new byte[Math.toIntExact(channel.size())];
        fill(channel, 0, ByteBuffer.wrap(all));
        return all;
    }

    private static void fill(FileChannel channel, long position, ByteBuffer target) throws IOException {
        long at = position;
        while (target.hasRemaining()) {
            int count = channel.read(target, at);
            if (count < 0) {
                throw new EOFException("a part of the file has become shorter");
            }
            at += count;
        }
    }

    /** Returns what a line says of a protein; null for another line. */
    private static @Nullable Placed placed(String line) {
        try {
            Map<String, Object> entry = JSON.std.mapFrom(line);
            return entry.get("id") instanceof String id
                            && entry.get("row") instanceof Number row
                            && entry.get("rows") instanceof Number count
                    ? new Placed(id, row.longValue(), count.longValue())
                    : null;
        } catch (IOException e) {
            return null;
        }
    }

    private long rowBytes() {
        return (long) columns * Float.BYTES;
    }

    /** Returns the numbers of a row. */
    int columns() {
        return columns;
    }

    /** Returns how many proteins are there already. */
    int proteins() {
        return placed.size();
    }

    /**
     * Takes the rows of the next protein; {@link #flush} writes them.
     *
     * @param taken residues that were computed; fewer where it was cut
     */
    void add(String id, int residues, int taken, int windows, float[] numbers) throws IOException {
        if (rows == Rows.TOKENS && isSafetensors() && placed.size() >= MOST_TENSORS) {
            throw new CommandFailure("--out: expected .npy for more than " + MOST_TENSORS
                    + " proteins, each of which would be a tensor");
        }
        long count = numbers.length / columns;
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("protein", placed.size());
        line.put("id", id);
        line.put("residues", residues);
        line.put("taken", taken);
        line.put("windows", windows);
        line.put("row", rowCount);
        line.put("rows", count);
        ByteBuffer bytes = ByteBuffer.allocate(numbers.length * Float.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asFloatBuffer().put(numbers);
        write(values, bytes.array());
        lines.add((JSON.std.asString(line) + "\n").getBytes(StandardCharsets.UTF_8));
        placed.add(new Placed(id, rowCount, count));
        rowCount += count;
    }

    /** Puts the rows on the disk, and then says that they are there. */
    void flush() throws IOException {
        if (!lines.isEmpty()) {
            values.force(false);
            for (byte[] line : lines) {
                write(index, line);
            }
            lines.clear();
        }
    }

    private static void write(FileChannel channel, byte[] bytes) throws IOException {
        ByteBuffer rest = ByteBuffer.wrap(bytes);
        while (rest.hasRemaining()) {
            channel.write(rest);
        }
    }

    /**
     * Makes the file of all rows, and {@code FILE.jsonl} of what they belong to.
     *
     * @param totals the last line of that
     * @return the name of the second file
     */
    Path publish(Map<String, Object> totals) throws IOException {
        flush();
        if (isSafetensors()) {
            SafetensorsWriter.write(file, sources(), Map.of("rows", EnumOption.word(rows)));
        } else if (file.toString().toLowerCase(Locale.ROOT).endsWith(".parquet")) {
            writeParquet();
        } else {
            writeNpy();
        }
        write(index, (JSON.std.asString(totals) + "\n").getBytes(StandardCharsets.UTF_8));
        Path whole = beside(".jsonl");
        Files.move(indexPart, whole, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        Files.delete(rowsPart);
        return whole;
    }

    private boolean isSafetensors() {
        return file.toString().toLowerCase(Locale.ROOT).endsWith(".safetensors");
    }

    private List<TensorSource> sources() {
        if (rows != Rows.TOKENS) {
            return List.of(source(EnumOption.word(rows), 0, rowCount));
        }
        List<TensorSource> sources = new ArrayList<>();
        Map<String, Integer> names = new HashMap<>();
        for (Placed protein : placed) {
            String name = protein.id();
            for (int again = names.merge(name, 1, Integer::sum);
                    again > 1;
                    again = names.merge(name, 1, Integer::sum)) {
                name = protein.id() + "#" + again;
            }
            sources.add(source(name, protein.row(), protein.rows()));
        }
        return sources;
    }

    private TensorSource source(String name, long row, long count) {
        TensorSpec spec = new TensorSpec(name, DType.FLOAT32, Shape.of(count, columns));
        return new TensorSource() {
            @Override
            public TensorSpec spec() {
                return spec;
            }

            @Override
            public void copyTo(long offset, MemorySegment target) {
                try {
                    fill(values, row * rowBytes() + offset, target.asByteBuffer());
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            }
        };
    }

    private void writeNpy() throws IOException {
        try (AtomicFile npy = AtomicFile.create(file)) {
            npy.append(npyHeader(rowCount, columns));
            byte[] piece = new byte[PIECE];
            for (long at = 0; at < rowCount * rowBytes(); at += PIECE) {
                int count = (int) Math.min(PIECE, rowCount * rowBytes() - at);
                fill(values, at, ByteBuffer.wrap(piece, 0, count));
                npy.append(count == PIECE ? piece : Arrays.copyOf(piece, count));
            }
            npy.publish();
        }
    }

    private void writeParquet() throws IOException {
        boolean ofResidues = rows == Rows.TOKENS;
        try (EmbeddingParquet parquet = new EmbeddingParquet(file, rows)) {
            int most = (int) Math.max(1, PIECE / rowBytes()); // rows that are read at a time
            ByteBuffer bytes =
                    ByteBuffer.allocate(Math.toIntExact(most * rowBytes())).order(ByteOrder.LITTLE_ENDIAN);
            float[] numbers = new float[most * columns];
            for (int i = 0; i < placed.size(); i++) {
                Placed protein = placed.get(i);
                for (long row = 0; row < protein.rows(); row += most) {
                    int count = (int) Math.min(most, protein.rows() - row);
                    bytes.clear().limit(Math.toIntExact(count * rowBytes()));
                    fill(values, (protein.row() + row) * rowBytes(), bytes);
                    bytes.flip().asFloatBuffer().get(numbers, 0, count * columns);
                    for (int j = 0; j < count; j++) {
                        int residue = ofResidues ? Math.toIntExact(row + j) : -1;
                        parquet.add(new EmbeddingParquet.Row(i, protein.id(), residue, numbers, j * columns, columns));
                    }
                }
            }
            parquet.publish();
        } catch (NoClassDefFoundError missing) {
            throw new CommandFailure(
                    "--out: expected the libraries org.apache.parquet:parquet-hadoop, blue.strategic.parquet:parquet-floor and"
                            + " org.locationtech.jts:jts-core for .parquet, got none: " + missing.getMessage(),
                    missing);
        }
    }

    /** Returns the beginning of a file of NumPy with rows of 32-bit floats: version 1.0, as {@code numpy.lib.format} describes it. */
    static byte[] npyHeader(long rows, long columns) {
        String text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + rows + ", " + columns + "), }";
        int before = 10;
        int length = (before + text.length() + NPY_ALIGNMENT) / NPY_ALIGNMENT * NPY_ALIGNMENT - before;
        ByteBuffer header = ByteBuffer.allocate(before + length).order(ByteOrder.LITTLE_ENDIAN);
        header.put((byte) 0x93)
                .put("NUMPY".getBytes(StandardCharsets.US_ASCII))
                .put((byte) 1)
                .put((byte) 0)
                .putShort((short) length);
        header.put((text + " ".repeat(length - 1 - text.length()) + "\n").getBytes(StandardCharsets.US_ASCII));
        return header.array();
    }

    /** Leaves what is not published for a later command. */
    @Override
    public void close() throws IOException {
        index.close();
        values.close();
    }
}
