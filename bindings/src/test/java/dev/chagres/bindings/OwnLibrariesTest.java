package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Finding this project's own libraries: by property, on the class path, and what is said when they are not there. */
@Tag("L0")
class OwnLibrariesTest {

    @TempDir
    private Path folder;

    private FakeMachine machine;

    @BeforeEach
    void makeMachine() {
        machine = new FakeMachine(folder);
        machine.properties.put("chagres.cache", folder.resolve("cache").toString());
    }

    @Test
    void librariesInAJarOnTheClassPathAreFound() throws IOException {
        URL[] urls = {FakeLibraries.jar(folder.resolve("a.jar"), 5).toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            OwnLibraries own = OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader);
            assertTrue(own.folder().startsWith(folder.resolve("cache/native")), own.toString());
            FakeLibraries.assertUnpacked(own.folder(), 5);
        }
    }

    @Test
    void librariesInAFolderOnTheClassPathAreUsedWhereTheyAre() throws IOException {
        Path classes = folder.resolve("classes");
        Path libraries = Files.createDirectories(classes.resolve(FakeLibraries.RESOURCE));
        for (String name : FakeLibraries.NAMES) {
            Files.write(libraries.resolve(name), FakeLibraries.content(name, 6));
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
        for (String name : FakeLibraries.NAMES) {
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
                    refusal.contains(
                            "tried resource " + FakeLibraries.RESOURCE + ": not on the class path or module path"),
                    refusal);
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
        URL[] urls = {FakeLibraries.jar(folder.resolve("a.jar"), 7).toUri().toURL()};
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
        Path jar = FakeLibraries.jar(folder.resolve("a.jar"), 8);
        byte[] bytes = Files.readAllBytes(jar);
        URL[] urls = {jar.toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            loader.getResource(FakeLibraries.RESOURCE + "/libchagres_te.so");
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

    /** A container that runs as a number: the JVM's home of a user whom no file names is "?". */
    @Test
    void theCacheOfAUserWithoutAHomeIsAFolderOfTheirOwn() {
        machine.properties.put("chagres.cache", "");
        machine.properties.put("user.home", "?");
        machine.environment.put("HOME", "/somewhere");
        assertEquals(
                Path.of("/somewhere/.cache/chagres"), machine.surroundings().cache());
        machine.environment.remove("HOME");
        machine.properties.put("java.io.tmpdir", "/temporary");
        assertEquals(
                Path.of("/temporary/chagres-" + FileOwnership.user()),
                machine.surroundings().cache());
        assertTrue(FileOwnership.user() >= 0, "this system tells the user's number");
    }

    @Test
    void aCacheThatOthersMayWriteToIsNamed() throws IOException {
        Path shared = Files.createDirectories(folder.resolve("shared"));
        Files.setPosixFilePermissions(shared, PosixFilePermissions.fromString("rwxrwxrwx"));
        machine.properties.put("chagres.cache", shared.resolve("cache").toString());
        URL[] urls = {FakeLibraries.jar(folder.resolve("a.jar"), 7).toUri().toURL()};
        try (URLClassLoader loader = new URLClassLoader(urls, null)) {
            String refusal = String.valueOf(assertThrows(
                            MissingLibraryException.class,
                            () -> OwnLibraries.find(machine.surroundings(), Provider.REFERENCE, loader))
                    .getMessage());
            assertTrue(
                    refusal.contains("which cannot be unpacked: other users may write to " + shared + " (mode 777)"),
                    refusal);
            assertTrue(
                    refusal.contains("to mend it: take the permission away (chmod go-w " + shared
                            + "), or name another folder: -Dchagres.cache=DIR"),
                    refusal);
        }
    }
}
