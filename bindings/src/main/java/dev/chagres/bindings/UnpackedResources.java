package dev.chagres.bindings;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.DigestInputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.jar.JarFile;
import org.jspecify.annotations.Nullable;

/**
 * A folder of resources unpacked into the cache, in a folder named by the contents (name and SHA-256 of every file), so that two
 * versions never meet. The resources tell their checksums in {@value #CHECKSUMS}; files that are not named there are read to know them.
 *
 * <p>Any number of processes may do this at once: each file is written beside its place and moved there in one step. Each process
 * checks that nobody else may write to the folder ({@link FileOwnership}), and the SHA-256 of every file, before it uses the folder:
 * a file that is damaged or forged is replaced.
 */
final class UnpackedResources {

    /** Lines as {@code sha256sum} writes them. */
    static final String CHECKSUMS = "SHA256SUMS";

    private static final int HASH_CHARACTERS = 32;
    private static final int READ_BYTES = 1 << 20;
    private static final Set<PosixFilePermission> OWN = PosixFilePermissions.fromString("rwxr-xr-x");
    private static final FileAttribute<?> OWN_ALONE = PosixFilePermissions.asFileAttribute(OWN);

    private UnpackedResources() {}

    /** The folder, or a folder above it, is one that others may write to, or belongs to others. */
    static final class UntrustedException extends IOException {
        private static final long serialVersionUID = 1;

        private final transient LoadFault fault;

        UntrustedException(LoadFault fault) {
            super(fault.cause());
            this.fault = fault;
        }

        LoadFault fault() {
            return fault;
        }
    }

    /** A file to unpack. */
    private record Packed(String name, String checksum, Content content) {}

    /** What opens a file to unpack. */
    @FunctionalInterface
    private interface Content {
        InputStream open() throws IOException;
    }

    /** Unpacks the files directly in {@code resource} of the jar; returns the folder that holds them. */
    static Path of(JarFile jar, String resource, Path cache) throws IOException {
        String prefix = resource + "/";
        Map<String, Content> files = new HashMap<>();
        jar.stream()
                .filter(entry -> entry.getName().startsWith(prefix) && !entry.isDirectory())
                .filter(entry -> entry.getName().indexOf('/', prefix.length()) < 0)
                .forEach(entry ->
                        files.put(entry.getName().substring(prefix.length()), () -> jar.getInputStream(entry)));
        return unpack(files, cache);
    }

    /** Unpacks the files directly in {@code resources}, a folder of a run-time image; returns the folder that holds them. */
    static Path of(Path resources, Path cache) throws IOException {
        Map<String, Content> files = new HashMap<>();
        try (DirectoryStream<Path> listed = Files.newDirectoryStream(resources, Files::isRegularFile)) {
            for (Path file : listed) {
                files.put(String.valueOf(file.getFileName()), () -> Files.newInputStream(file));
            }
        }
        return unpack(files, cache);
    }

    private static Path unpack(Map<String, Content> files, Path cache) throws IOException {
        Map<String, String> checksums = checksums(files.remove(CHECKSUMS));
        List<Packed> all = new ArrayList<>();
        for (Map.Entry<String, Content> file : files.entrySet()) {
            String told = checksums.get(file.getKey());
            String checksum = told == null ? checksum(file.getValue().open()) : told;
            all.add(new Packed(file.getKey(), checksum, file.getValue()));
        }
        all.sort(Comparator.comparing(Packed::name));
        Path folder = ownFolder(cache, hash(all));
        for (Packed packed : all) {
            Path file = folder.resolve(packed.name());
            if (!isIntact(file, packed)) {
                unpack(packed, folder, file);
            }
        }
        return folder;
    }

    private static Map<String, String> checksums(@Nullable Content lines) throws IOException {
        Map<String, String> checksums = new HashMap<>();
        if (lines != null) {
            try (InputStream content = lines.open()) {
                new String(content.readAllBytes(), StandardCharsets.UTF_8)
                        .lines()
                        .map(line -> line.split(" +", 2))
                        .forEach(parts -> checksums.put(parts[1], parts[0]));
            }
        }
        return checksums;
    }

    /** Makes the folder, in which this user alone may write. */
    private static Path ownFolder(Path cache, String name) throws IOException {
        Files.createDirectories(cache, OWN_ALONE);
        Path folder = cache.resolve(name);
        Files.createDirectories(folder, OWN_ALONE);
        Optional<LoadFault> fault = FileOwnership.fault(folder, new LoadFault.Supply("", Surroundings.CACHE_ELSEWHERE));
        if (fault.isPresent()) {
            throw new UntrustedException(fault.get());
        }
        return folder;
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError("every Java platform has SHA-256", impossible);
        }
    }

    private static String hash(List<Packed> files) {
        MessageDigest digest = sha256();
        for (Packed packed : files) {
            String line = packed.name() + " " + packed.checksum() + "\n";
            digest.update(line.getBytes(StandardCharsets.UTF_8));
        }
        return HexFormat.of().formatHex(digest.digest()).substring(0, HASH_CHARACTERS);
    }

    private static String checksum(InputStream content) throws IOException {
        MessageDigest digest = sha256();
        byte[] bytes = new byte[READ_BYTES];
        try (content) {
            for (int count = content.read(bytes); count >= 0; count = content.read(bytes)) {
                digest.update(bytes, 0, count);
            }
        }
        return HexFormat.of().formatHex(digest.digest());
    }

    private static boolean isIntact(Path file, Packed packed) {
        try {
            return Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS)
                    && FileOwnership.fault(file, new LoadFault.Supply("", "")).isEmpty()
                    && checksum(Files.newInputStream(file)).equals(packed.checksum());
        } catch (IOException unreadable) {
            return false;
        }
    }

    private static void unpack(Packed packed, Path folder, Path file) throws IOException {
        Path written = Files.createTempFile(folder, ".unpacking", null, OWN_ALONE);
        try {
            MessageDigest digest = sha256();
            try (InputStream content = new DigestInputStream(packed.content().open(), digest);
                    OutputStream target = Files.newOutputStream(written)) {
                content.transferTo(target);
            }
            if (!HexFormat.of().formatHex(digest.digest()).equals(packed.checksum())) {
                throw new IOException(
                        "the resource " + packed.name() + " is damaged: its SHA-256 is not that of " + CHECKSUMS);
            }
            Files.move(written, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
        } finally {
            Files.deleteIfExists(written);
        }
    }
}
