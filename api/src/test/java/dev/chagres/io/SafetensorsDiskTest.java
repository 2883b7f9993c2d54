package dev.chagres.io;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * A write that the system stops in the middle. A limit on the size of files does it without a disk to fill up: the same
 * call fails at the same place, with another reason.
 */
@Tag("L0")
class SafetensorsDiskTest {
    private static final int LIMIT_BLOCKS = 2048;
    private static final int BLOCK_BYTES = 512;
    private static final int TIME_LIMIT_SECONDS = 60;

    @TempDir
    private Path folder;

    /** Writes more than may be written to the file named by the argument, and prints what comes of it. */
    static final class Write {
        public static void main(String[] arguments) {
            int size = 2 * LIMIT_BLOCKS * BLOCK_BYTES;
            TensorSpec first = new TensorSpec("first", DType.BYTE, Shape.of(100));
            TensorSpec second = new TensorSpec("second", DType.BYTE, Shape.of(size));
            try {
                SafetensorsWriter.write(
                        Path.of(arguments[0]),
                        List.of(
                                TensorSource.of(first, MemorySegment.ofArray(new byte[100])),
                                TensorSource.of(second, MemorySegment.ofArray(new byte[size]))),
                        Map.of());
                System.out.println("written");
            } catch (SafetensorsException refused) {
                System.out.println(refused.tensor().orElse("none") + "|" + refused.getMessage());
            }
        }
    }

    @Test
    void theTensorIsNamedAndTheOldFileStays() throws IOException, InterruptedException {
        Path file = Files.write(folder.resolve("model.safetensors"), RawFile.bytes("{}"));
        assertEquals(
                "second|" + file + ": tensor \"second\": could not be written: File too large\n",
                runLimited(file.toString()));
        assertArrayEquals(RawFile.bytes("{}"), Files.readAllBytes(file));
        try (Stream<Path> files = Files.list(folder)) {
            assertEquals(List.of(file), files.toList());
        }
    }

    private static String runLimited(String argument) throws IOException, InterruptedException {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Process process = new ProcessBuilder(
                        "sh",
                        "-c",
                        "ulimit -f " + LIMIT_BLOCKS + " && exec \"$0\" \"$@\"",
                        java,
                        "-cp",
                        System.getProperty("java.class.path"),
                        Write.class.getName(),
                        argument)
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (!process.waitFor(TIME_LIMIT_SECONDS, TimeUnit.SECONDS)) {
            process.destroyForcibly();
            throw new AssertionError("still running after " + TIME_LIMIT_SECONDS + " s:\n" + output);
        }
        assertEquals(0, process.exitValue(), output);
        return output;
    }
}
