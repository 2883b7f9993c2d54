package dev.chagres.io;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

@Tag("L0")
class AtomicFileTest {
    @TempDir
    private Path folder;

    private Path name;
    private Path part;

    @BeforeEach
    void name() {
        name = folder.resolve("r.jsonl");
        part = folder.resolve("r.jsonl.part");
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static void assertProblem(String text, Executable action) {
        assertEquals(text, assertThrows(UncheckedIOException.class, action).getMessage());
    }

    @Test
    void theNameAppearsWithTheWholeContent() throws IOException {
        Files.writeString(name, "older");
        Files.writeString(part, "what a run that failed has left");
        try (AtomicFile file = AtomicFile.create(name)) {
            assertEquals(part, file.written());
            file.append(bytes("a\n"));
            assertEquals("a\n", Files.readString(part));
            assertEquals("older", Files.readString(name));
            file.append(bytes("b\n"));
            file.publish();
        }
        assertEquals("a\nb\n", Files.readString(name));
        assertFalse(Files.exists(part));
    }

    @Test
    void closedUnpublishedItKeepsThePartAndTheOlderFile() throws IOException {
        Files.writeString(name, "older");
        try (AtomicFile file = AtomicFile.create(name)) {
            file.append(bytes("a\n"));
        }
        assertEquals("older", Files.readString(name));
        assertEquals("a\n", Files.readString(part));
    }

    @Test
    void discardedItLeavesTheOlderFileAlone() throws IOException {
        Files.writeString(name, "older");
        try (AtomicFile file = AtomicFile.create(name)) {
            file.append(bytes("a\n"));
            file.discard();
            file.discard();
        }
        assertEquals("older", Files.readString(name));
        assertFalse(Files.exists(part));
    }

    @Test
    void afterItsEndItTakesNothing() {
        AtomicFile file = AtomicFile.create(name);
        file.publish();
        String text = name + ": was published, discarded or closed already";
        assertEquals(
                text,
                assertThrows(IllegalStateException.class, () -> file.append(bytes("a")))
                        .getMessage());
        assertEquals(
                text, assertThrows(IllegalStateException.class, file::publish).getMessage());
    }

    @Test
    void aLinkStaysALink() throws IOException {
        Path link = Files.createSymbolicLink(folder.resolve("link"), name.getFileName());
        assertProblem(link + ": cannot be written: it is a link that leads to no file", () -> AtomicFile.create(link));
        Files.writeString(name, "older");
        try (AtomicFile file = AtomicFile.create(link)) {
            assertEquals(part.toRealPath(), file.written().toRealPath());
            file.append(bytes("a"));
            file.publish();
        }
        assertTrue(Files.isSymbolicLink(link));
        assertEquals("a", Files.readString(name));
    }

    @Test
    void devicesAreWrittenToDirectly() {
        Path none = Path.of("/dev/null");
        Assumptions.assumeTrue(Files.exists(none), "this system has no /dev/null");
        assertTrue(AtomicFile.isDirect(none) && !AtomicFile.isDirect(name));
        try (AtomicFile file = AtomicFile.create(none);
                AtomicFile second = AtomicFile.create(none)) {
            file.append(bytes("a"));
            second.append(bytes("b"));
            assertEquals(none, file.written());
            file.publish();
            second.discard();
        }
        assertFalse(Files.isRegularFile(none));
    }

    /** Of folders in /dev only that of shared memory is one in which programs keep files. */
    @Test
    void filesInSharedMemoryAreFiles() throws IOException {
        Path shared = Path.of("/dev/shm");
        Assumptions.assumeTrue(Files.isWritable(shared), "this system has no /dev/shm");
        Path own = Files.createTempDirectory(shared, "whole-file-");
        Path target = own.resolve("r.jsonl");
        try (AtomicFile file = AtomicFile.create(target)) {
            assertEquals(own.resolve("r.jsonl.part"), file.written());
            file.append(bytes("a"));
            file.publish();
            Path link = Files.createSymbolicLink(own.resolve("link"), target);
            assertFalse(AtomicFile.isDirect(target) || AtomicFile.isDirect(link));
            assertEquals("a", Files.readString(link));
            Files.delete(link);
        } finally {
            Files.deleteIfExists(target);
            Files.delete(own);
        }
    }

    @Test
    void aLinkToAnOpenFileIsASecondName() throws IOException {
        Path link = Files.createSymbolicLink(folder.resolve("link"), Path.of("/proc/self/comm"));
        assertTrue(AtomicFile.isDirect(link));
        for (Path absent : new Path[] {Path.of("/dev/none"), Path.of("/proc/none")}) {
            assertProblem(
                    absent + ": cannot be written: there is no such device, and no file can be made there",
                    () -> AtomicFile.create(absent));
        }
    }

    @Test
    void aFullDiskIsToldInOneLine() {
        Path full = Path.of("/dev/full");
        Assumptions.assumeTrue(Files.exists(full), "this system has no /dev/full");
        try (AtomicFile file = AtomicFile.create(full)) {
            assertProblem("/dev/full: cannot be written: No space left on device", () -> file.append(bytes("a")));
        }
    }

    @Test
    void placesThatCannotBeWrittenAreToldAtOnce() {
        Path absent = folder.resolve("absent/r.jsonl");
        assertProblem(absent + ": cannot be written: its folder does not exist", () -> AtomicFile.create(absent));
        assertProblem(folder + ": cannot be written: it is a directory; name a file", () -> AtomicFile.create(folder));
        Path system = Path.of("/sys/r.jsonl");
        String refused = assertThrows(UncheckedIOException.class, () -> AtomicFile.create(system))
                .getMessage();
        // In a container it may be mounted to be read alone.
        assertTrue(
                refused.equals(system + ": cannot be written: no permission to write it")
                        || refused.equals(system + ": cannot be written: Read-only file system"),
                refused);
        Path secondName = Path.of("/proc/self/comm");
        assertProblem(
                secondName + ": cannot be written: it is a second name of a file that may be in use; give that file's"
                        + " own name, another file, or a pipe",
                () -> AtomicFile.create(secondName));
    }

    /** One that leads nowhere, and one whose file would be lost. */
    @Test
    void aPartThatIsALinkIsRefused() throws IOException {
        Path other = folder.resolve("other");
        Files.createSymbolicLink(part, other);
        String text = name + ": cannot be written: " + part + ", its name until it is whole, is a link; remove that";
        assertProblem(text, () -> AtomicFile.create(name));
        Files.writeString(other, "kept");
        assertProblem(text, () -> AtomicFile.create(name));
        assertEquals("kept", Files.readString(other));
        Files.delete(part);
        AtomicFile.create(name).close();
    }

    @Test
    void aPartThatVanishedIsNamed() throws IOException {
        try (AtomicFile file = AtomicFile.create(name)) {
            Files.delete(part);
            assertProblem(
                    name + ": cannot be written: " + part + " was moved or deleted before it was whole", file::publish);
        }
        assertFalse(Files.exists(name));
    }
}
