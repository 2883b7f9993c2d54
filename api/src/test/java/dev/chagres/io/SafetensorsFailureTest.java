package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files that are none, that are closed or that others cut short; and that nothing stays open. */
@Tag("L0")
class SafetensorsFailureTest {
    private static final int LARGE = 5 << 20;

    @TempDir
    private Path folder;

    /** A file with one tensor of random bytes, larger than what is read at a time. */
    private Path large(byte[] content) throws IOException {
        new Random(11).nextBytes(content);
        return RawFile.write(
                folder,
                RawFile.bytes(
                        "{" + RawFile.tensor("a", "U8", "[" + content.length + "]", 0, content.length) + "}", content));
    }

    @Test
    void whatIsNoFileIsRefused() {
        Path absent = folder.resolve("absent");
        assertThrown(
                SafetensorsException.class,
                absent + ": expected a safetensors file, got no such file",
                () -> SafetensorsFile.open(absent));
        assertThrown(
                SafetensorsException.class,
                folder
                        + ": expected a safetensors file, or the folder of a checkpoint, which has chagres.json, got a folder"
                        + " without it",
                () -> SafetensorsFile.open(folder));
        assertThrown(
                SafetensorsException.class,
                "/dev/null: expected a safetensors file, got no regular file",
                () -> SafetensorsFile.open(Path.of("/dev/null")));
    }

    @Test
    void aClosedFileSaysSo() throws IOException {
        Path path = large(new byte[10]);
        SafetensorsFile file = SafetensorsFile.open(path);
        SafetensorsEntry entry = file.entry("a");
        MemorySegment bytes = entry.bytes();
        file.close();
        file.close();
        String text = "safetensors file " + path + " is closed";
        assertThrown(IllegalStateException.class, text, entry::bytes);
        assertThrown(IllegalStateException.class, text, () -> entry.copyTo(MemorySegment.ofArray(new byte[10])));
        assertThrows(IllegalStateException.class, () -> bytes.get(ValueLayout.JAVA_BYTE, 0));
        assertEquals("\"a\" U8[10]", entry.toString());
    }

    @Test
    void aFileCutShortAfterItWasOpenedIsAnError() throws IOException {
        Path path = large(new byte[LARGE]);
        try (SafetensorsFile file = SafetensorsFile.open(path);
                Arena arena = Arena.ofConfined()) {
            try (FileChannel shortened = FileChannel.open(path, StandardOpenOption.WRITE)) {
                shortened.truncate(4096);
            }
            String text =
                    path + ": tensor \"a\": the file ends at byte 4096: it has become shorter since it was opened";
            for (MemorySegment target : List.of(
                    arena.allocate(LARGE),
                    MemorySegment.ofArray(new byte[LARGE]),
                    MemorySegment.ofArray(new float[LARGE / 4]))) {
                SafetensorsException refused = assertThrows(
                        SafetensorsException.class, () -> file.entry("a").copyTo(target));
                assertEquals(text, refused.getMessage());
                assertEquals(Optional.of("a"), refused.tensor());
            }
        }
    }

    @Test
    void anInterruptClosesTheFileAndSaysSo() throws IOException {
        Path path = large(new byte[100]);
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            MemorySegment target = MemorySegment.ofArray(new byte[100]);
            Thread.currentThread().interrupt();
            assertThrown(
                    SafetensorsException.class,
                    path
                            + ": tensor \"a\": could not be read: the thread was interrupted, which closes the file; open it"
                            + " again",
                    () -> file.entry("a").copyTo(target));
            assertTrue(Thread.interrupted());
            assertThrown(
                    SafetensorsException.class,
                    path + ": tensor \"a\": could not be read: it was closed meanwhile, by another thread or by an"
                            + " interrupt; open it again",
                    () -> file.entry("a").copyTo(target));
        }
    }

    @Test
    void openingLeavesNothingBehindWhenItFails() throws IOException {
        Path path = RawFile.write(folder, RawFile.bytes("{}", (byte) 1));
        long before = openFiles();
        for (int i = 0; i < 50; i++) {
            assertThrows(SafetensorsException.class, () -> SafetensorsFile.open(path));
        }
        assertFalse(openFiles() > before + 10, "files stay open");
    }

    private static long openFiles() throws IOException {
        try (var files = Files.list(Path.of("/proc/self/fd"))) {
            return files.count();
        }
    }
}
