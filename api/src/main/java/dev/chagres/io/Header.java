package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;

/**
 * A file's header: the tensors in the order of their data, and the metadata.
 *
 * @param metadata in the order of the file
 */
record Header(List<Entry> entries, Map<String, String> metadata) {
    /** Longer headers are refused, as other readers do: what is in a header is held in memory. */
    static final int MAX_BYTES = 100_000_000;

    /** Bytes before the header, which hold its length. */
    static final int LENGTH_BYTES = 8;

    /** More than PyTorch and NumPy allow a tensor to have. */
    static final int MAX_RANK = 64;

    /** The names of the fields of a tensor. */
    static final String DTYPE = "dtype";

    static final String SHAPE = "shape";
    static final String OFFSETS = "data_offsets";

    /**
     * One tensor.
     *
     * @param begin its first byte, from the end of the header
     * @param end the byte after its last
     */
    record Entry(String name, SafetensorsType type, long[] sizes, long begin, long end) {}

    /**
     * Returns the header when its tensors fill the data without a hole or an overlap, each with the bytes that its type and
     * shape need.
     *
     * @param dataSize bytes after the header
     * @throws SafetensorsException when they do not
     */
    static Header checked(Path file, List<Entry> unordered, Map<String, String> metadata, long dataSize) {
        List<Entry> entries = unordered.stream()
                .sorted(Comparator.comparingLong(Entry::begin).thenComparingLong(Entry::end))
                .toList();
        long end = 0;
        Entry previous = null;
        for (Entry entry : entries) {
            checkSize(file, entry);
            if (entry.begin() != end) {
                String fault = entry.begin() < end ? ": the two overlap" : ": the bytes between belong to no tensor";
                throw SafetensorsException.of(
                        file,
                        entry.name(),
                        OFFSETS + ": expected to begin at " + end + ", where "
                                + (previous == null ? "the header" : "tensor " + ForeignText.quoted(previous.name()))
                                + " ends, got "
                                + entry.begin() + fault,
                        null);
            }
            if (entry.end() > dataSize) {
                throw SafetensorsException.of(
                        file,
                        entry.name(),
                        OFFSETS + ": expected to end within the " + dataSize + " bytes of data, got " + entry.end()
                                + ": the file is cut short or damaged",
                        null);
            }
            end = entry.end();
            previous = entry;
        }
        if (end != dataSize) {
            throw SafetensorsException.of(
                    file, "expected " + end + " bytes of data, of all tensors, got " + dataSize, null);
        }
        return new Header(entries, metadata);
    }

    static void checkSize(Path file, Entry entry) {
        if (entry.begin() > entry.end()) {
            throw SafetensorsException.of(
                    file,
                    entry.name(),
                    OFFSETS + ": expected a begin before the end, got " + entry.begin() + ", " + entry.end(),
                    null);
        }
        long wanted;
        try {
            wanted = entry.type().byteSize(entry.sizes());
        } catch (ArithmeticException impossible) {
            throw SafetensorsException.of(
                    file,
                    entry.name(),
                    SHAPE + ": " + SafetensorsEntry.described(entry.type(), entry.sizes()) + " is no possible size: "
                            + impossible.getMessage(),
                    impossible);
        }
        if (entry.end() - entry.begin() != wanted) {
            throw SafetensorsException.of(
                    file,
                    entry.name(),
                    OFFSETS + ": expected " + wanted + " bytes for "
                            + SafetensorsEntry.described(entry.type(), entry.sizes()) + ", got "
                            + (entry.end() - entry.begin()),
                    null);
        }
    }
}
