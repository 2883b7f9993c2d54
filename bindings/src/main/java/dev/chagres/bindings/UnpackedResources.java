package dev.chagres.bindings;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.jar.JarFile;
import java.util.zip.CRC32;

/**
 * A folder of resources unpacked into the cache, in a folder named by the contents (name, size and CRC-32 of every file), so
 * that two versions never meet. A jar says all of this of itself; of a run-time image the files are read to know it.
 *
 * <p>Any number of processes may do this at once: each file is written beside its place and moved there in one step, and
 * each process checks size and CRC-32 of every file before it uses the folder, so a damaged file is replaced.
 */
final class UnpackedResources {

    private static final int HASH_CHARACTERS = 32;
    private static final int READ_BYTES = 1 << 20;

    private UnpackedResources() {}

    /** A file to unpack. */
    private record Packed(String name, long size, long crc, Content content) {}

    /** What opens a file to unpack. */
    @FunctionalInterface
    private interface Content {
        InputStream open() throws IOException;
    }

    /** Unpacks the files directly in {@code resource} of the jar; returns the folder that holds them. */
    static Path of(JarFile jar, String resource, Path cache) throws IOException {
        String prefix = resource + "/";
        return unpack(
                jar.stream()
                        .filter(entry -> entry.getName().startsWith(prefix) && !entry.isDirectory())
                        .filter(entry -> entry.getName().indexOf('/', prefix.length()) < 0)
                        .map(entry -> new Packed(
                                entry.getName().substring(prefix.length()),
                                entry.getSize(),
                                entry.getCrc(),
                                () -> jar.getInputStream(entry)))
                        .toList(),
                cache);
    }

    /** Unpacks the files directly in {@code resources}, a folder of a run-time image; returns the folder that holds them. */
    static Path of(Path resources, Path cache) throws IOException {
        List<Packed> files = new ArrayList<>();
        try (DirectoryStream<Path> listed = Files.newDirectoryStream(resources, Files::isRegularFile)) {
            for (Path file : listed) {
                files.add(packed(file));
            }
        }
        return unpack(files, cache);
    }

    private static Packed packed(Path file) throws IOException {
        CRC32 crc = new CRC32();
        long size = 0;
        try (InputStream content = Files.newInputStream(file)) {
            byte[] bytes = new byte[READ_BYTES];
            for (int count = content.read(bytes); count >= 0; count = content.read(bytes)) {
                crc.update(bytes, 0, count);
                size += count;
            }
        }
        String name = String.valueOf(file.getFileName());
        return new Packed(name, size, crc.getValue(), () -> Files.newInputStream(file));
    }

    private static Path unpack(List<Packed> unordered, Path cache) throws IOException {
        List<Packed> files =
                unordered.stream().sorted(Comparator.comparing(Packed::name)).toList();
        Path folder = Files.createDirectories(cache.resolve(hash(files)));
        for (Packed packed : files) {
            Path file = folder.resolve(packed.name());
            if (!isIntact(file, packed)) {
                unpack(packed, folder, file);
            }
        }
        return folder;
    }

    private static String hash(List<Packed> files) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (Packed packed : files) {
                String line = packed.name() + " " + packed.size() + " " + packed.crc() + "\n";
                digest.update(line.getBytes(StandardCharsets.UTF_8));
            }
            return HexFormat.of().formatHex(digest.digest()).substring(0, HASH_CHARACTERS);
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError("every Java platform has SHA-256", impossible);
        }
    }

    private static boolean isIntact(Path file, Packed packed) {
        try {
            if (!Files.isRegularFile(file) || Files.size(file) != packed.size()) {
                return false;
            }
            CRC32 crc = new CRC32();
            try (FileChannel channel = FileChannel.open(file)) {
                ByteBuffer buffer = ByteBuffer.allocateDirect(READ_BYTES);
                while (channel.read(buffer.clear()) > 0) {
                    crc.update(buffer.flip());
                }
            }
            return crc.getValue() == packed.crc();
        } catch (IOException unreadable) {
            return false;
        }
    }

    private static void unpack(Packed packed, Path folder, Path file) throws IOException {
        Path written = Files.createTempFile(
                folder,
                ".unpacking",
                null,
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwxr-xr-x")));
        try {
            try (InputStream content = packed.content().open();
                    OutputStream target = Files.newOutputStream(written)) {
                content.transferTo(target);
            }
            Files.move(written, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            Files.deleteIfExists(written);
        }
    }
}
