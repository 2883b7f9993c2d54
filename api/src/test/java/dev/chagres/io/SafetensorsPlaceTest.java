package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static dev.chagres.io.WriterSources.bytes;
import static dev.chagres.io.WriterSources.spec;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.io.WriterSources.Filled;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Where a file can be written, and what writers that were killed leave there. */
@Tag("L0")
@Timeout(60)
class SafetensorsPlaceTest {
    @TempDir
    private Path folder;

    private List<String> names() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(path -> String.valueOf(path.getFileName()))
                    .sorted()
                    .toList();
        }
    }

    @Test
    void tryingOutLeavesEverythingAsItWas() throws IOException {
        Path file = folder.resolve("model.safetensors");
        SafetensorsWriter.tryOut(file);
        assertEquals(List.of(), names());
        Files.write(file, new byte[] {1, 2});
        SafetensorsWriter.tryOut(file);
        Path link = Files.createSymbolicLink(folder.resolve("link"), file.getFileName());
        SafetensorsWriter.tryOut(link);
        assertEquals(List.of("link", "model.safetensors"), names());
        assertArrayEquals(new byte[] {1, 2}, Files.readAllBytes(file));
    }

    @Test
    void aPlaceThatTakesNoFileIsNamed() {
        Path absent = folder.resolve("absent/x");
        assertThrown(
                SafetensorsException.class,
                absent + ": could not be written: no such folder: " + absent.getParent(),
                () -> SafetensorsWriter.tryOut(absent));
        assertThrown(
                SafetensorsException.class,
                folder + ": expected the name of a file to write, got a folder",
                () -> SafetensorsWriter.tryOut(folder));
        Path tooLong = folder.resolve("x".repeat(256));
        assertThrown(
                SafetensorsException.class,
                tooLong + ": could not be written: File name too long: " + tooLong,
                () -> SafetensorsWriter.tryOut(tooLong));
        var refused = assertThrows(
                SafetensorsException.class, () -> SafetensorsWriter.tryOut(Path.of("/proc/sys/kernel/ostype")));
        assertTrue(
                refused.getMessage().startsWith("/proc/sys/kernel/ostype: could not be written: "),
                refused::getMessage);
    }

    /** Begins to write the file named by the argument, says so, and waits. */
    static final class Writer {
        public static void main(String[] arguments) {
            TensorSource waiting = new Filled(spec("a", DType.BYTE, 1), (offset, target) -> {
                System.out.println("ready");
                try {
                    var _ = System.in.read();
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
            SafetensorsWriter.write(Path.of(arguments[0]), List.of(waiting), Map.of());
        }
    }

    private static Process startWriter(Path file) throws IOException {
        Process process = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-cp",
                        System.getProperty("java.class.path"),
                        Writer.class.getName(),
                        file.toString())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        assertEquals("ready", process.inputReader().readLine());
        return process;
    }

    private static void kill(Process process) throws InterruptedException {
        process.destroyForcibly();
        process.waitFor();
    }

    @Test
    void whatAKilledWriterLeftIsRemovedByTheNextOfTheSameFile() throws IOException, InterruptedException {
        Path file = folder.resolve("model.safetensors");
        Path other = folder.resolve("other.safetensors");
        Process writing = startWriter(file);
        Process ofOther = startWriter(other);
        try {
            assertEquals(2, names().size());
            SafetensorsWriter.write(file, List.of(bytes("a", 1)), Map.of());
            assertEquals(3, names().size(), "a writer that lives keeps its file");
            kill(writing);
            kill(ofOther);
            SafetensorsWriter.write(file, List.of(bytes("a", 2)), Map.of());
            assertEquals(2, names().size(), () -> "of the other file within the hour");
            SafetensorsWriter.write(other, List.of(bytes("a", 3)), Map.of());
            assertEquals(List.of("model.safetensors", "other.safetensors"), names());
        } finally {
            kill(writing);
            kill(ofOther);
        }
    }

    /** Else the one that ends first would take the other's lock with it. */
    @Test
    void aSecondWriterOfThisProcessLeavesTheFirstOnesFile() throws IOException {
        Path file = folder.resolve("model.safetensors");
        TensorSource nested = new Filled(spec("a", DType.BYTE, 1), (offset, target) -> {
            SafetensorsWriter.write(file, List.of(bytes("b", 1)), Map.of());
        });
        SafetensorsWriter.write(file, List.of(nested), Map.of());
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            assertEquals("[a]", opened.entries().keySet().toString());
        }
        assertEquals(List.of("model.safetensors"), names());
    }
}
