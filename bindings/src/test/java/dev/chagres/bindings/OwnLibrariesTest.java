package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class OwnLibrariesTest {

    private static final List<String> NAMES =
            List.of("libchagres_ops.so", "libchagres_reference.so", "libchagres_te.so");

    @TempDir
    private Path folder;

    private FakeMachine machine;
    private String resource;

    @BeforeEach
    void makeMachine() {
        machine = new FakeMachine(folder);
        machine.properties.put("chagres.cache", folder.resolve("cache").toString());
        resource = "dev/chagres/native/" + machine.surroundings().platform();
    }

    /** Unpacks the jar named by the first argument into the cache named by the second, and prints the folder. */
    static final class Unpack {
        public static void main(String[] arguments) throws IOException {
            String resource = "dev/chagres/native/" + Surroundings.ofProcess().platform();
            try (JarFile jar = new JarFile(arguments[0])) {
                System.out.println("unpacked " + UnpackedResources.of(jar, resource, Path.of(arguments[1])));
            }
        }
    }

    private static byte[] content(String name, int seed) {
        byte[] content = new byte[300_000];
        new Random(seed + name.hashCode()).nextBytes(content);
        return content;
    }

    private Path jar(String name, int seed) throws IOException {
        Path jar = folder.resolve(name);
        try (JarOutputStream out = new JarOutputStream(Files.newOutputStream(jar))) {
            for (String library : NAMES) {
                out.putNextEntry(new JarEntry(resource + "/" + library));
                out.write(content(library, seed));
            }
            out.putNextEntry(new JarEntry(resource + "/deeper/file"));
            out.putNextEntry(new JarEntry("dev/chagres/native/other-platform/libchagres_te.so"));
        }
        return jar;
    }

    private Path unpack(Path jar) throws IOException {
        try (JarFile file = new JarFile(jar.toFile())) {
            return UnpackedResources.of(file, resource, folder.resolve("cache/native"));
        }
    }

    private static void assertUnpacked(Path unpacked, int seed) throws IOException {
        for (String library : NAMES) {
            assertArrayEquals(content(library, seed), Files.readAllBytes(unpacked.resolve(library)), library);
        }
        try (Stream<Path> files = Files.list(unpacked)) {
            assertEquals(
                    NAMES,
                    files.map(file -> String.valueOf(file.getFileName()))
                            .sorted()
                            .toList());
        }
    }

    @Test
    void aJarIsUnpackedOnceByContent() throws IOException {
        Path first = unpack(jar("a.jar", 1));
        assertUnpacked(first, 1);
        Object before = Files.getAttribute(first.resolve("libchagres_te.so"), "unix:ino");
        assertEquals(first, unpack(jar("same-content.jar", 1)));
        assertEquals(before, Files.getAttribute(first.resolve("libchagres_te.so"), "unix:ino"), "written again");
        Path second = unpack(jar("other-content.jar", 2));
        assertNotEquals(first, second);
        assertUnpacked(second, 2);
        assertUnpacked(first, 1);
    }

    @Test
    void aDamagedFileIsReplacedAndNotWrittenInto() throws IOException {
        Path jar = jar("a.jar", 1);
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
        assertUnpacked(unpacked, 1);
        assertNotEquals(
                damagedFile,
                Files.getAttribute(flipped, "unix:ino"),
                "a process that has the old file open must keep it");
    }

    @Test
    void threadsMayUnpackAtOnce() throws Exception {
        Path jar = jar("a.jar", 3);
        try (ExecutorService threads = Executors.newFixedThreadPool(8)) {
            List<Callable<Path>> calls = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                calls.add(() -> unpack(jar));
            }
            for (Future<Path> unpacked : threads.invokeAll(calls)) {
                assertUnpacked(unpacked.get(), 3);
            }
        }
    }

    @Test
    void processesMayUnpackAtOnce() throws Exception {
        Path jar = jar("a.jar", 4);
        Path cache = folder.resolve("shared-cache");
        try (ExecutorService threads = Executors.newFixedThreadPool(4)) {
            List<Callable<ForkedJvm.Result>> calls = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                calls.add(() -> ForkedJvm.run(List.of(), Unpack.class, jar.toString(), cache.toString()));
            }
            for (Future<ForkedJvm.Result> run : threads.invokeAll(calls)) {
                String output = run.get().expectExit(0).output();
                assertUnpacked(Path.of(output.lines().toList().getLast().replace("unpacked ", "")), 4);
            }
        }
    }

    @Test
    void librariesInAJarOnTheClassPathAreFound() throws IOException {
        URL[] urls = {jar("a.jar", 5).toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            OwnLibraries own = OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader);
            assertTrue(own.folder().startsWith(folder.resolve("cache/native")), own.toString());
            assertUnpacked(own.folder(), 5);
        }
    }

    @Test
    void librariesInAFolderOnTheClassPathAreUsedWhereTheyAre() throws IOException {
        Path classes = folder.resolve("classes");
        Path libraries = Files.createDirectories(classes.resolve(resource));
        for (String name : NAMES) {
            Files.write(libraries.resolve(name), content(name, 6));
        }
        URL[] urls = {classes.toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            assertEquals(
                    libraries,
                    OwnLibraries.find(machine.surroundings(), Provider.CUDA, loader)
                            .folder());
        }
    }

    @Test
    void thePropertyComesFirst() throws IOException {
        Path named = Files.createDirectories(folder.resolve("named"));
        for (String name : NAMES) {
            Files.createFile(named.resolve(name));
        }
        machine.properties.put(OwnLibraries.PROPERTY, named.toString());
        OwnLibraries own = OwnLibraries.find(machine.surroundings(), Provider.CUDA);
        assertEquals(named.resolve("libchagres_te.so"), own.guard());
        assertEquals(named.resolve("libchagres_ops.so"), own.operations());
        assertEquals(named.resolve("libchagres_reference.so"), own.reference());
    }

    private String refusal(Provider provider) {
        return String.valueOf(
                assertThrows(MissingLibraryException.class, () -> OwnLibraries.find(machine.surroundings(), provider))
                        .getMessage());
    }

    @Test
    void aFolderThatLacksALibraryIsRefusedByName() throws IOException {
        Path named = Files.createDirectories(folder.resolve("named"));
        Files.createFile(named.resolve("libchagres_te.so"));
        machine.properties.put(OwnLibraries.PROPERTY, named.toString());
        String place = "\n  tried -Dchagres.native.path=" + named
                + ": lacks libchagres_ops.so, libchagres_reference.so\n  to mend it: put the chagres-native jar";
        String cuda = refusal(Provider.CUDA);
        assertTrue(cuda.startsWith("Chagres native libraries: NOT_FOUND: libchagres_ops.so" + place), cuda);
        String reference = refusal(Provider.REFERENCE);
        assertTrue(
                reference.startsWith("Chagres native libraries: NOT_FOUND: libchagres_reference.so" + place),
                reference);
    }

    @Test
    void aPropertyThatNamesNoFolderIsRefused() throws IOException {
        Path file = Files.createFile(folder.resolve("file"));
        machine.properties.put(OwnLibraries.PROPERTY, file.toString());
        String refusal = refusal(Provider.REFERENCE);
        assertTrue(refusal.contains("tried -Dchagres.native.path=" + file + ": not a folder"), refusal);
        machine.properties.put(OwnLibraries.PROPERTY, folder.resolve("absent").toString());
        refusal = refusal(Provider.REFERENCE);
        assertTrue(refusal.contains("absent: no such folder"), refusal);
    }

    @Test
    void aClassPathWithoutTheJarIsRefused() throws IOException {
        try (URLClassLoader loader = new URLClassLoader(new URL[0], null)) {
            String refusal = String.valueOf(assertThrows(
                            MissingLibraryException.class,
                            () -> OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader))
                    .getMessage());
            assertTrue(refusal.contains("tried -Dchagres.native.path: not set"), refusal);
            assertTrue(
                    refusal.contains("tried resource " + resource + ": not on the class path or module path"), refusal);
        }
    }

    @Test
    void aPlatformWithoutLibrariesIsNamed() throws IOException {
        machine.properties.put("os.name", "Plan 9");
        machine.properties.put("os.arch", "riscv64");
        String refusal = refusal(Provider.REFERENCE);
        assertTrue(refusal.contains("tried resource dev/chagres/native/plan_9-riscv64: not on"), refusal);
    }

    @Test
    void aCacheThatCannotBeWrittenIsNamedWithThePropertyThatMendsIt() throws IOException {
        Path cache = Files.createFile(folder.resolve("file-in-the-way"));
        machine.properties.put("chagres.cache", cache.toString());
        URL[] urls = {jar("a.jar", 7).toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            String refusal = String.valueOf(assertThrows(
                            MissingLibraryException.class,
                            () -> OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader))
                    .getMessage());
            assertTrue(refusal.contains(cache.toString()), refusal);
            assertTrue(refusal.contains("-Dchagres.cache=DIR"), refusal);
        }
    }

    @Test
    void aBrokenJarIsRefused() throws IOException {
        Path jar = jar("a.jar", 8);
        byte[] bytes = Files.readAllBytes(jar);
        URL[] urls = {jar.toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            loader.getResource(resource + "/libchagres_te.so");
            for (int i = 1000; i < 200_000; i++) {
                bytes[i] = 0;
            }
            try (OutputStream out = Files.newOutputStream(jar)) {
                out.write(bytes);
            }
            MissingLibraryException refused = assertThrows(
                    MissingLibraryException.class,
                    () -> OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader));
            assertTrue(String.valueOf(refused.getMessage()).contains("tried resource jar:file:"), refused.toString());
        }
    }

    @Test
    void theCacheIsThePropertyThenTheVariableThenTheHomeFolder() {
        machine.environment.put("CHAGRES_CACHE", "/from/variable");
        machine.properties.put("chagres.cache", "/from/property");
        assertEquals(Path.of("/from/property"), machine.surroundings().cache());
        machine.properties.put("chagres.cache", "");
        assertEquals(Path.of("/from/variable"), machine.surroundings().cache());
        machine.environment.remove("CHAGRES_CACHE");
        assertEquals(
                folder.resolve("home/user/.cache/chagres"),
                machine.surroundings().cache());
    }
}
