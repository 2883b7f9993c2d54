package dev.chagres.bindings;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;

/**
 * Looks at a file before the dynamic loader does: the loader maps a truncated library without a complaint, and the JVM
 * dies when the missing part is touched.
 *
 * <p>Source: elf(5).
 */
final class ElfFile {

    private static final int HEADER_SIZE = 64;
    private static final int MAGIC = 0x464c457f;
    private static final int CLASS_64 = 2;
    private static final int LITTLE_ENDIAN = 1;
    private static final int SHARED_OBJECT = 3;
    private static final int PROGRAM_HEADER_SIZE = 56;
    private static final Map<String, Integer> MACHINES = Map.of("x86_64", 62, "amd64", 62, "aarch64", 183);

    private ElfFile() {}

    /** Why the file is no shared library for this processor; empty when it is one. */
    static Optional<String> fault(Path file, String processor) {
        if (Files.isSymbolicLink(file) && !Files.exists(file)) {
            return Optional.of("a symbolic link to nothing");
        }
        if (!Files.exists(file)) {
            return Optional.of("no such file");
        }
        if (!Files.isRegularFile(file)) {
            return Optional.of("not a file");
        }
        try (FileChannel channel = FileChannel.open(file)) {
            return fault(channel, processor);
        } catch (AccessDeniedException denied) {
            return Optional.of("not readable by this user");
        } catch (IOException failure) {
            return Optional.of("not readable: " + failure.getMessage());
        }
    }

    private static Optional<String> fault(FileChannel channel, String processor) throws IOException {
        ByteBuffer header = read(channel, 0, HEADER_SIZE);
        if (header.remaining() < HEADER_SIZE || header.getInt(0) != MAGIC) {
            return Optional.of("not a shared library (no ELF header)");
        }
        if (header.get(4) != CLASS_64 || header.get(5) != LITTLE_ENDIAN || header.getShort(16) != SHARED_OBJECT) {
            return Optional.of("not a 64-bit little-endian shared library");
        }
        int machine = Short.toUnsignedInt(header.getShort(18));
        Integer wanted = MACHINES.get(processor);
        if (wanted == null || wanted != machine) {
            return Optional.of(
                    "made for another processor (ELF machine " + machine + "), this JVM runs on " + processor);
        }
        long tableAt = header.getLong(32);
        int segments = Short.toUnsignedInt(header.getShort(56));
        int tableSize = segments * PROGRAM_HEADER_SIZE;
        boolean whole = isInside(tableAt, tableSize, channel.size());
        ByteBuffer table = whole ? read(channel, tableAt, tableSize) : header;
        for (int i = 0; whole && i < segments; i++) {
            int entry = i * PROGRAM_HEADER_SIZE;
            whole = isInside(table.getLong(entry + 8), table.getLong(entry + 32), channel.size());
        }
        return whole ? Optional.empty() : Optional.of("truncated: the file is shorter than its ELF header says");
    }

    private static boolean isInside(long offset, long size, long end) {
        return offset >= 0 && size >= 0 && size <= end && offset <= end - size;
    }

    private static ByteBuffer read(FileChannel channel, long position, int size) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
        while (buffer.hasRemaining() && channel.read(buffer, position + buffer.position()) > 0) {
            continue;
        }
        return buffer.flip();
    }
}
