package dev.chagres.bindings;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.jar.JarFile;
import java.util.zip.CRC32;
import java.util.zip.ZipEntry;

/**
 * A jar's folder unpacked into the cache, in a folder named by what the jar says of the contents (name, size and CRC-32 of
 * every file), so that two versions never meet and nothing is read to find the name.
 *
 * <p>Any number of processes may do this at once: each file is written beside its place and moved there in one step, and
 * each process checks size and CRC-32 of every file before it uses the folder, so a damaged file is replaced.
 */
final class UnpackedResources {

    private static final int HASH_CHARACTERS = 32;

    private UnpackedResources() {}

    /** Unpacks the files directly in {@code resource} of the jar; returns the folder that holds them. */
    static Path of(JarFile jar, String resource, Path cache) throws IOException {
        String prefix = resource + "/";
        List<ZipEntry> entries = jar.stream()
                .filter(entry -> entry.getName().startsWith(prefix) && !entry.isDirectory())
                .filter(entry -> entry.getName().indexOf('/', prefix.length()) < 0)
                .map(ZipEntry.class::cast)
                .sorted(Comparator.comparing(ZipEntry::getName))
                .toList();
        Path folder = Files.createDirectories(cache.resolve(hash(entries)));
        for (ZipEntry entry : entries) {
            Path file = folder.resolve(entry.getName().substring(prefix.length()));
            if (!isIntact(file, entry)) {
                unpack(jar, entry, folder, file);
            }
        }
        return folder;
    }

    private static String hash(List<ZipEntry> entries) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            for (ZipEntry entry : entries) {
                String line = entry.getName() + " " + entry.getSize() + " " + entry.getCrc() + "\n";
                digest.update(line.getBytes(StandardCharsets.UTF_8));
            }
            return HexFormat.of().formatHex(digest.digest()).substring(0, HASH_CHARACTERS);
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError("every Java platform has SHA-256", impossible);
        }
    }

    private static boolean isIntact(Path file, ZipEntry entry) {
        try {
            if (!Files.isRegularFile(file) || Files.size(file) != entry.getSize()) {
                return false;
            }
            CRC32 crc = new CRC32();
            try (FileChannel channel = FileChannel.open(file)) {
                ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
                while (channel.read(buffer.clear()) > 0) {
                    crc.update(buffer.flip());
                }
            }
            return crc.getValue() == entry.getCrc();
        } catch (IOException unreadable) {
            return false;
        }
    }

    private static void unpack(JarFile jar, ZipEntry entry, Path folder, Path file) throws IOException {
        Path written = Files.createTempFile(
                folder,
                ".unpacking",
                null,
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwxr-xr-x")));
        try {
            try (InputStream content = jar.getInputStream(entry);
                    OutputStream target = Files.newOutputStream(written)) {
                content.transferTo(target);
            }
            Files.move(written, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            Files.deleteIfExists(written);
        }
    }
}
