package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.jar.JarFile;
import java.util.stream.Stream;
import java.util.zip.CRC32;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Unpacking into the cache: by content, by many at once, and again where a file is damaged. */
@Tag("L0")
class UnpackedResourcesTest {
    @TempDir
    private Path folder;

    /** Unpacks the jar named by the first argument into the cache named by the second, and prints the folder. */
    static final class Unpack {
        public static void main(String[] arguments) throws IOException {
            try (JarFile jar = new JarFile(arguments[0])) {
                System.out.println(
                        "unpacked " + UnpackedResources.of(jar, FakeLibraries.RESOURCE, Path.of(arguments[1])));
            }
        }
    }

    private Path unpack(Path jar) throws IOException {
        try (JarFile file = new JarFile(jar.toFile())) {
            return UnpackedResources.of(file, FakeLibraries.RESOURCE, folder.resolve("cache/native"));
        }
    }

    @Test
    void aJarIsUnpackedOnceByContent() throws IOException {
        Path first = unpack(FakeLibraries.jar(folder.resolve("a.jar"), 1));
        FakeLibraries.assertUnpacked(first, 1);
        Object before = Files.getAttribute(first.resolve("libchagres_te.so"), "unix:ino");
        assertEquals(first, unpack(FakeLibraries.jar(folder.resolve("same-content.jar"), 1)));
        assertEquals(before, Files.getAttribute(first.resolve("libchagres_te.so"), "unix:ino"), "written again");
        Path second = unpack(FakeLibraries.jar(folder.resolve("other-content.jar"), 2));
        assertNotEquals(first, second);
        FakeLibraries.assertUnpacked(second, 2);
        FakeLibraries.assertUnpacked(first, 1);
    }

    @Test
    void aDamagedFileIsReplacedAndNotWrittenInto() throws IOException {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 1);
        Path unpacked = unpack(jar);
        Path shortened = unpacked.resolve("libchagres_te.so");
        Files.write(shortened, new byte[] {1, 2, 3});
        Path flipped = unpacked.resolve("libchagres_ops.so");
        byte[] bytes = Files.readAllBytes(flipped);
        bytes[bytes.length / 2] ^= 1;
        Files.write(flipped, bytes);
        Object damagedFile = Files.getAttribute(flipped, "unix:ino");
        Files.delete(unpacked.resolve("libchagres_reference.so"));

        assertEquals(unpacked, unpack(jar));
        FakeLibraries.assertUnpacked(unpacked, 1);
        assertNotEquals(
                damagedFile,
                Files.getAttribute(flipped, "unix:ino"),
                "a process that has the old file open must keep it");
    }

    /** With the same size and CRC-32, as one that forges a library would make it. */
    @Test
    void aForgedFileIsReplaced() throws IOException {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 1);
        Path forged = unpack(jar).resolve("libchagres_te.so");
        byte[] bytes = Files.readAllBytes(forged);
        long before = crc(bytes);
        bytes[0] ^= 1;
        // CRC-32 is linear: some choice of 32 later bits takes the change back.
        long[] effects = new long[32];
        for (int bit = 0; bit < 32; bit++) {
            byte[] other = bytes.clone();
            other[1000 + bit / 8] ^= (byte) (1 << bit % 8);
            effects[bit] = crc(other) ^ crc(bytes);
        }
        long choice = solve(effects, crc(bytes) ^ before);
        for (int bit = 0; bit < 32; bit++) {
            if ((choice >>> bit & 1) != 0) {
                bytes[1000 + bit / 8] ^= (byte) (1 << bit % 8);
            }
        }
        assertEquals(before, crc(bytes), "the forged file has the checksum of the right one");
        Files.write(forged, bytes);
        FakeLibraries.assertUnpacked(unpack(jar), 1);
    }

    private static long crc(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return crc.getValue();
    }

    /** Which of the effects add up to the sum, over two elements, by Gauss's elimination. */
    private static long solve(long[] effects, long sum) {
        long[] rows = new long[32];
        for (int row = 0; row < 32; row++) {
            for (int column = 0; column < 32; column++) {
                rows[row] |= (effects[column] >>> row & 1) << column;
            }
            rows[row] |= (sum >>> row & 1) << 32;
        }
        for (int column = 0; column < 32; column++) {
            int pivot = column;
            while ((rows[pivot] >>> column & 1) == 0) {
                pivot++;
            }
            long row = rows[pivot];
            rows[pivot] = rows[column];
            rows[column] = row;
            for (int other = 0; other < 32; other++) {
                if (other != column && (rows[other] >>> column & 1) != 0) {
                    rows[other] ^= row;
                }
            }
        }
        long choice = 0;
        for (int row = 0; row < 32; row++) {
            choice |= (rows[row] >>> 32) << row;
        }
        return choice;
    }

    @Test
    void filesAndFoldersAreThisUsersAlone() throws IOException {
        Path unpacked = unpack(FakeLibraries.jar(folder.resolve("a.jar"), 1));
        for (Path part : List.of(unpacked, unpacked.resolve("libchagres_te.so"), unpacked.getParent())) {
            assertEquals(
                    "rwxr-xr-x", PosixFilePermissions.toString(Files.getPosixFilePermissions(part)), part.toString());
        }
    }

    @Test
    void aFileThatOthersMayWriteToIsReplaced() throws IOException {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 1);
        Path file = unpack(jar).resolve("libchagres_te.so");
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rwxrwxrwx"));
        unpack(jar);
        assertEquals("rwxr-xr-x", PosixFilePermissions.toString(Files.getPosixFilePermissions(file)));
    }

    @Test
    void aFolderOfAnotherUserIsRefused() throws IOException {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 1);
        Path unpacked = unpack(jar);
        int user = FileOwnership.user();
        String refusal;
        if (user == 0) {
            Files.setAttribute(unpacked, "unix:uid", 65534);
            refusal = String.valueOf(
                    assertThrows(IOException.class, () -> unpack(jar)).getMessage());
            user = 65534;
        } else { // Only root can give a folder to another user; this one looks with another's eyes.
            refusal = FileOwnership.fault(unpacked, 65534, new LoadFault.Supply("", "another"))
                    .orElseThrow()
                    .cause();
        }
        assertTrue(
                refusal.startsWith(unpacked + " belongs to the user with number " + user + ", who may have changed it"),
                refusal);
    }

    @Test
    void aLinkInThePlaceOfAFileIsReplaced() throws IOException {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 1);
        Path file = unpack(jar).resolve("libchagres_te.so");
        Path elsewhere = folder.resolve("elsewhere.so");
        Files.move(file, elsewhere);
        Files.createSymbolicLink(file, elsewhere);
        FakeLibraries.assertUnpacked(unpack(jar), 1);
        assertTrue(Files.isRegularFile(file, LinkOption.NOFOLLOW_LINKS));
    }

    /** The checksums that a jar has beside its files are believed; files that differ from them are damaged. */
    @Test
    void aJarWhoseFilesAreNotThoseOfItsChecksumsIsRefused() throws IOException {
        Path files = Files.createDirectories(folder.resolve("libraries"));
        Files.writeString(files.resolve("a.so"), "a");
        Files.writeString(files.resolve("SHA256SUMS"), "0".repeat(64) + "  a.so\n");
        String refusal = String.valueOf(
                assertThrows(IOException.class, () -> UnpackedResources.of(files, folder.resolve("cache/native")))
                        .getMessage());
        assertEquals("the resource a.so is damaged: its SHA-256 is not that of SHA256SUMS", refusal);
    }

    /** The JDK's own image stands for one that jlink made: both are read as jrt:, file by file. */
    @Test
    void resourcesOfARunTimeImageAreUnpackedOnceByContent() throws IOException {
        Path resources = Path.of(URI.create("jrt:/java.base/java/util/zip"));
        Path unpacked = UnpackedResources.of(resources, folder.resolve("cache/native"));
        Path known = unpacked.resolve("CRC32.class");
        assertArrayEquals(Files.readAllBytes(resources.resolve("CRC32.class")), Files.readAllBytes(known));
        Object before = Files.getAttribute(known, "unix:ino");
        Files.delete(unpacked.resolve("Adler32.class"));
        assertEquals(unpacked, UnpackedResources.of(resources, folder.resolve("cache/native")));
        assertEquals(before, Files.getAttribute(known, "unix:ino"), "written again");
        try (Stream<Path> packed = Files.list(resources);
                Stream<Path> files = Files.list(unpacked)) {
            assertEquals(packed.filter(Files::isRegularFile).count(), files.count());
        }
    }

    @Test
    void aJarAndAFolderOfTheSameFilesAreUnpackedToOnePlace() throws IOException {
        Path files = Files.createDirectories(folder.resolve("libraries"));
        Files.createDirectory(files.resolve("deeper"));
        for (String name : FakeLibraries.NAMES) {
            Files.write(files.resolve(name), FakeLibraries.content(name, 9));
        }
        assertEquals(
                unpack(FakeLibraries.jar(folder.resolve("a.jar"), 9)),
                UnpackedResources.of(files, folder.resolve("cache/native")));
        FakeLibraries.assertUnpacked(unpack(FakeLibraries.jar(folder.resolve("a.jar"), 9)), 9);
    }

    @Test
    void threadsMayUnpackAtOnce() throws Exception {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 3);
        try (ExecutorService threads = Executors.newFixedThreadPool(8)) {
            List<Callable<Path>> calls = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                calls.add(() -> unpack(jar));
            }
            for (Future<Path> unpacked : threads.invokeAll(calls)) {
                FakeLibraries.assertUnpacked(unpacked.get(), 3);
            }
        }
    }

    @Test
    void processesMayUnpackAtOnce() throws Exception {
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 4);
        Path cache = folder.resolve("shared-cache");
        try (ExecutorService threads = Executors.newFixedThreadPool(4)) {
            List<Callable<ForkedJvm.Result>> calls = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                calls.add(() -> ForkedJvm.run(List.of(), Unpack.class, jar.toString(), cache.toString()));
            }
            for (Future<ForkedJvm.Result> run : threads.invokeAll(calls)) {
                String output = run.get().expectExit(0).output();
                FakeLibraries.assertUnpacked(
                        Path.of(output.lines().toList().getLast().replace("unpacked ", "")), 4);
            }
        }
    }
}
