package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.jar.JarFile;
import java.util.stream.Stream;
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
