package dev.chagres.io;

import dev.chagres.bindings.ForeignText;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * The checksums that a file has of itself, as texts of its metadata: CRC-32C in eight hexadecimal digits each, of the header, and of every
 * tensor's bytes in the order of the data. That of the header is computed with eight zeros in its own place. Two texts, because damage to
 * the name of one must not turn the file into one without checksums.
 */
final class Checksums {
    /** What the names of these texts begin with. */
    static final String PREFIX = "chagres.crc32c.";

    private static final String HEADER = PREFIX + "header";
    private static final String TENSORS = PREFIX + "tensors";
    private static final int DIGITS = 8;
    private static final int RADIX = 16;
    private static final int PIECE = 1 << 16;
    private static final String NONE = "0".repeat(DIGITS);

    private Checksums() {}

    /** Returns the texts of a file of so many tensors before its checksums are known. */
    static Map<String, String> unknown(int tensors) {
        return Map.of(HEADER, NONE, TENSORS, NONE.repeat(tensors));
    }

    /** Replaces the zeros of {@link #unknown} in length and header. */
    static void put(ByteBuffer header, List<CRC32C> tensors) {
        StringBuilder all = new StringBuilder();
        tensors.forEach(tensor -> all.append(digits(tensor)));
        put(header, TENSORS, all.toString());
        put(header, HEADER, digits(of(header.array())));
    }

    private static void put(ByteBuffer header, String name, String text) {
        header.put(place(header.array(), name), text.getBytes(StandardCharsets.US_ASCII));
    }

    /**
     * Compares the checksum of a header with the one that it has of itself.
     *
     * @param source of the header's length and the header, together {@code size} bytes, which may be too many for the heap
     * @return whether it has checksums
     * @throws SafetensorsException when it is another one
     */
    static boolean check(Path file, HeaderBytes.Source source, long size) throws IOException {
        String header = start(HEADER);
        String tensors = start(TENSORS);
        long own = -1;
        boolean hasTensors = false;
        for (long at = 0; own < 0 && at < size; at += PIECE) {
            ByteBuffer piece = ByteBuffer.allocate((int) Math.min(PIECE + tensors.length() - 1L, size - at));
            source.fill(at, piece);
            String text = new String(piece.array(), StandardCharsets.ISO_8859_1);
            int found = text.indexOf(header);
            own = found < 0 ? -1 : at + found + header.length();
            hasTensors |= text.contains(tensors);
        }
        if (own < 0 && !hasTensors) {
            return false;
        }
        byte[] digits = new byte[own < 0 ? 0 : (int) Math.min(DIGITS, size - own)];
        source.fill(Math.max(0, own), ByteBuffer.wrap(digits));
        CRC32C checksum = new CRC32C();
        add(checksum, source, 0, Math.max(0, own));
        checksum.update(NONE.getBytes(StandardCharsets.US_ASCII), 0, digits.length);
        add(checksum, source, Math.max(0, own) + digits.length, size);
        String expected = new String(digits, StandardCharsets.ISO_8859_1);
        difference(expected, checksum).ifPresent(damage -> {
            throw SafetensorsException.of(file, "header: " + damage, null);
        });
        return true;
    }

    private static void add(CRC32C checksum, HeaderBytes.Source source, long begin, long end) throws IOException {
        for (long at = begin; at < end; at += PIECE) {
            ByteBuffer piece = ByteBuffer.allocate((int) Math.min(PIECE, end - at));
            source.fill(at, piece);
            checksum.update(piece.array());
        }
    }

    /** Returns the checksums of so many tensors by the metadata of a header that was checked. */
    static List<String> ofTensors(Path file, Map<String, String> metadata, int tensors) {
        String all = metadata.getOrDefault(TENSORS, "");
        if (all.length() != tensors * DIGITS) {
            throw SafetensorsException.of(
                    file,
                    "header: " + TENSORS + ": expected " + tensors * DIGITS + " digits for " + tensors
                            + " tensors, got " + all.length(),
                    null);
        }
        List<String> each = new ArrayList<>();
        for (int i = 0; i < tensors; i++) {
            each.add(all.substring(i * DIGITS, (i + 1) * DIGITS));
        }
        return each;
    }

    /** Returns in words that bytes have another checksum than expected; empty if they have that. */
    static Optional<String> difference(String expected, CRC32C bytes) {
        String got = digits(bytes);
        return expected.equals(got) ? Optional.empty() : Optional.of(damaged(expected, got));
    }

    private static String damaged(String expected, String got) {
        return "damaged since it was written: expected the checksum " + ForeignText.quoted(expected) + ", got " + got
                + "; take another copy of the file. A program that changes a file on purpose leaves out the metadata "
                + PREFIX + "*";
    }

    private static String digits(CRC32C checksum) {
        String digits = Long.toString(checksum.getValue(), RADIX);
        return NONE.substring(digits.length()) + digits;
    }

    private static CRC32C of(byte[] bytes) {
        CRC32C checksum = new CRC32C();
        checksum.update(bytes);
        return checksum;
    }

    /** Returns where the text of this name begins, -1 if there is none. Within another text a backslash would precede its quotation marks. */
    private static int place(byte[] header, String name) {
        String start = start(name);
        int at = new String(header, StandardCharsets.ISO_8859_1).indexOf(start);
        return at < 0 ? -1 : at + start.length();
    }

    private static String start(String name) {
        return '"' + name + "\":\"";
    }

    /** The bytes of a header, read as they are parsed: all of them together may be 100 MB. */
    static final class HeaderBytes extends InputStream {
        private final Source source;
        private long position;
        private final long end;

        /** Fills a buffer from a place in the file on. */
        @FunctionalInterface
        interface Source {
            void fill(long position, ByteBuffer buffer) throws IOException;
        }

        HeaderBytes(Source source, long begin, long size) {
            this.source = source;
            position = begin;
            end = begin + size;
        }

        @Override
        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        @Override
        public int read(byte[] target, int offset, int length) throws IOException {
            int count = (int) Math.min(length, end - position);
            if (count == 0) {
                return length == 0 ? 0 : -1;
            }
            source.fill(position, ByteBuffer.wrap(target, offset, count));
            position += count;
            return count;
        }
    }
}
