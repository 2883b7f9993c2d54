package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static dev.chagres.io.WriterSources.bytes;
import static dev.chagres.io.WriterSources.spec;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.io.WriterSources.Filled;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Writing: the bytes, and that the place has the whole old file or the whole new one. */
@Tag("L0")
class SafetensorsWriterTest {
    private static final int PIECE = 32 << 20;

    @TempDir
    private Path folder;

    private Path file;

    @BeforeEach
    void nameFile() {
        file = folder.resolve("model.safetensors");
    }

    private byte[] content(String name) {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            return opened.entry(name).bytes().toArray(ValueLayout.JAVA_BYTE);
        }
    }

    private List<String> filesInFolder() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(path -> String.valueOf(path.getFileName()))
                    .sorted()
                    .toList();
        }
    }

    @Test
    void theBytesAreTheFormats() throws IOException {
        TensorSource numbers = TensorSource.of(spec("b", DType.INT32, 1, 2), MemorySegment.ofArray(new int[] {1, 256}));
        SafetensorsWriter.write(file, List.of(bytes("a", 7), numbers), Map.of("y", "2", "x", "\"1\""));
        String header = "{\"__metadata__\":{\"x\":\"\\\"1\\\"\",\"y\":\"2\"},"
                + "\"b\":{\"dtype\":\"I32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
                + "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}";
        String padded = header + " ".repeat(-header.length() & 7);
        assertArrayEquals(RawFile.bytes(padded, new byte[] {1, 0, 0, 0, 0, 1, 0, 0, 7}), Files.readAllBytes(file));
        assertEquals(List.of("model.safetensors"), filesInFolder());
    }

    @Test
    void aFileMayHoldNothing() throws IOException {
        SafetensorsWriter.write(file, List.of(), Map.of());
        assertArrayEquals(RawFile.bytes("{}      "), Files.readAllBytes(file));
        SafetensorsWriter.write(
                file, List.of(TensorSource.of(spec("", DType.FLOAT16, 0, 3), MemorySegment.NULL)), Map.of());
        assertArrayEquals(new byte[0], content(""));
    }

    @Test
    void largeTensorsAreFetchedInPieces() {
        List<String> asked = new ArrayList<>();
        TensorSource large = new Filled(spec("large", DType.INT64, PIECE / 8 + 3), (offset, target) -> {
            asked.add(offset + " " + target.byteSize());
            for (long i = 0; i < target.byteSize(); i += 8) {
                target.set(ValueLayout.JAVA_LONG, i, (offset + i) / 8);
            }
        });
        SafetensorsWriter.write(file, List.of(large, bytes("small", 1, 2)), Map.of());
        assertEquals(List.of("0 " + PIECE, PIECE + " 24"), asked);
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            long[] numbers = new long[PIECE / 8 + 3];
            opened.entry("large").copyTo(MemorySegment.ofArray(numbers));
            for (int i = 0; i < numbers.length; i++) {
                assertEquals(i, numbers[i]);
            }
        }
        assertArrayEquals(new byte[] {1, 2}, content("small"));
    }

    @Test
    void whoHasTheOldFileOpenKeepsIt() throws IOException {
        SafetensorsWriter.write(file, List.of(bytes("a", 1, 2, 3)), Map.of());
        try (SafetensorsFile old = SafetensorsFile.open(file)) {
            SafetensorsWriter.write(file, List.of(bytes("a", 4)), Map.of());
            assertArrayEquals(new byte[] {1, 2, 3}, old.entry("a").bytes().toArray(ValueLayout.JAVA_BYTE));
            byte[] copied = new byte[3];
            old.entry("a").copyTo(MemorySegment.ofArray(copied));
            assertArrayEquals(new byte[] {1, 2, 3}, copied);
        }
        assertArrayEquals(new byte[] {4}, content("a"));
        assertEquals(List.of("model.safetensors"), filesInFolder());
    }

    @Test
    void whileItIsWrittenThePlaceHasTheOldFile() throws IOException {
        SafetensorsWriter.write(file, List.of(bytes("a", 1)), Map.of());
        TensorSource looking = new Filled(spec("a", DType.BYTE, 1), (offset, target) -> {
            assertArrayEquals(new byte[] {1}, content("a"));
            target.set(ValueLayout.JAVA_BYTE, offset, (byte) 2);
        });
        SafetensorsWriter.write(file, List.of(looking), Map.of());
        assertArrayEquals(new byte[] {2}, content("a"));
    }

    @Test
    void aSymbolicLinkStaysOne() throws IOException {
        Path elsewhere = Files.createDirectory(folder.resolve("elsewhere"));
        Path target = elsewhere.resolve("real.safetensors");
        SafetensorsWriter.write(target, List.of(bytes("a", 1)), Map.of());
        Files.createSymbolicLink(file, Path.of("elsewhere/real.safetensors"));
        SafetensorsWriter.write(file, List.of(bytes("a", 2)), Map.of());
        assertTrue(Files.isSymbolicLink(file));
        assertArrayEquals(new byte[] {2}, content("a"));
        assertArrayEquals(Files.readAllBytes(file), Files.readAllBytes(target));
    }

    @Test
    void aNewFileHasThePermissionsOfAnyOther() throws IOException {
        SafetensorsWriter.write(file, List.of(), Map.of());
        Path ordinary = Files.createFile(folder.resolve("ordinary"));
        assertEquals(
                PosixFilePermissions.toString(Files.getPosixFilePermissions(ordinary)),
                PosixFilePermissions.toString(Files.getPosixFilePermissions(file)));
    }

    @Test
    void whatASourceThrowsIsThrownOnAndTheOldFileStays() throws IOException {
        SafetensorsWriter.write(file, List.of(bytes("a", 1)), Map.of());
        IllegalStateException fault = new IllegalStateException("the device is gone");
        TensorSource failing = new Filled(spec("b", DType.BYTE, 1), (offset, target) -> {
            throw fault;
        });
        assertSame(
                fault,
                assertThrows(
                        IllegalStateException.class,
                        () -> SafetensorsWriter.write(file, List.of(bytes("a", 2), failing), Map.of())));
        assertArrayEquals(new byte[] {1}, content("a"));
        assertEquals(List.of("model.safetensors"), filesInFolder());
    }

    @Test
    void aPlaceThatCannotBeWrittenIsNamed() throws IOException, InterruptedException {
        Path absent = folder.resolve("absent/model.safetensors");
        assertThrown(
                SafetensorsException.class,
                absent + ": could not be written: no such folder: " + absent.getParent(),
                () -> SafetensorsWriter.write(absent, List.of(), Map.of()));
        assertThrown(
                SafetensorsException.class,
                folder + ": expected the name of a file to write, got a folder",
                () -> SafetensorsWriter.write(folder, List.of(), Map.of()));
        Path pipe = folder.resolve("pipe");
        assertEquals(0, new ProcessBuilder("mkfifo", pipe.toString()).start().waitFor());
        assertThrown(
                SafetensorsException.class,
                pipe + ": expected a file or a new name, got a device or a pipe, which a file cannot replace",
                () -> SafetensorsWriter.write(pipe, List.of(), Map.of()));
        Path dangling = Files.createSymbolicLink(folder.resolve("dangling"), Path.of("nothing"));
        assertThrown(
                SafetensorsException.class,
                dangling + ": could not be written: no such file or folder: " + dangling,
                () -> SafetensorsWriter.write(dangling, List.of(), Map.of()));
        Path system = Path.of("/sys/model.safetensors");
        SafetensorsException refused = assertThrows(
                SafetensorsException.class, () -> SafetensorsWriter.write(system, List.of(bytes("a", 1)), Map.of()));
        String text = String.valueOf(refused.getMessage());
        assertTrue(text.startsWith(system + ": could not be written: "), text);
        assertTrue(text.contains("permission denied for /sys") || text.contains("Read-only file system"), text);
    }

    @Test
    void aThreadThatIsInterruptedLeavesTheOldFile() throws IOException {
        SafetensorsWriter.write(file, List.of(bytes("a", 1)), Map.of());
        Thread.currentThread().interrupt();
        assertThrows(SafetensorsException.class, () -> SafetensorsWriter.write(file, List.of(bytes("a", 2)), Map.of()));
        assertTrue(Thread.interrupted());
        assertArrayEquals(new byte[] {1}, content("a"));
        assertEquals(List.of("model.safetensors"), filesInFolder());
    }
}
