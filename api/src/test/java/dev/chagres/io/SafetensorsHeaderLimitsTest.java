package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The lengths of headers and names, and their encoding. */
@Tag("L0")
class SafetensorsHeaderLimitsTest {
    @TempDir
    private Path folder;

    @Test
    void bytesThatAreNotUtf8AreRefused() throws IOException {
        for (byte[] name : new byte[][] {{(byte) 0xc3}, {(byte) 0xff}, {(byte) 0xed, (byte) 0xa0, (byte) 0x80}}) {
            byte[] json = "{\"....\":{}}".getBytes(StandardCharsets.ISO_8859_1);
            System.arraycopy(name, 0, json, 2, name.length);
            Path file = RawFile.write(folder, RawFile.bytes(json.length, json));
            assertThrown(
                    SafetensorsException.class,
                    file + ": header: expected UTF-8, got bytes that are none",
                    () -> SafetensorsFile.open(file));
        }
        byte[] utf16 = "{}".getBytes(StandardCharsets.UTF_16LE);
        Path file = RawFile.write(folder, RawFile.bytes(utf16.length, utf16));
        assertThrows(SafetensorsException.class, () -> SafetensorsFile.open(file));
    }

    @Test
    void aLengthThatDoesNotFitIsRefused() throws IOException {
        byte[] json = "{}".getBytes(StandardCharsets.UTF_8);
        Path file = RawFile.write(folder, RawFile.bytes(3, json));
        assertThrown(
                SafetensorsException.class,
                file + ": header: expected 3 bytes, got the 2 that the file has: it is cut short",
                () -> SafetensorsFile.open(file));
        RawFile.write(folder, RawFile.bytes(100_000_001, json));
        assertThrown(
                SafetensorsException.class,
                file + ": header: expected at most 100000000 bytes, got 100000001: this may be no safetensors file",
                () -> SafetensorsFile.open(file));
        RawFile.write(folder, RawFile.bytes(-1, json));
        assertThrown(
                SafetensorsException.class,
                file
                        + ": header: expected at most 100000000 bytes, got 18446744073709551615: this may be no safetensors"
                        + " file",
                () -> SafetensorsFile.open(file));
        Files.write(file, new byte[7]);
        assertThrown(
                SafetensorsException.class,
                file + ": expected 8 bytes with the header's length, got 7",
                () -> SafetensorsFile.open(file));
    }

    @Test
    void theLongestHeaderIsRead() throws IOException {
        Path file = RawFile.write(folder, RawFile.bytes(100_000_000, "{}".getBytes(StandardCharsets.UTF_8)));
        byte[] spaces = new byte[1 << 20];
        Arrays.fill(spaces, (byte) ' ');
        try (RandomAccessFile longest = new RandomAccessFile(file.toFile(), "rw")) {
            longest.seek(10);
            for (long left = 100_000_000 - 2; left > 0; left -= spaces.length) {
                longest.write(spaces, 0, (int) Math.min(left, spaces.length));
            }
        }
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            assertEquals(Map.of(), opened.entries());
        }
    }

    @Test
    void theLongestNameIsReadAndMessagesShortenIt() throws IOException {
        String name = "\u0007" + "n".repeat(65_535);
        String escaped = name.replace("\u0007", "\\u0007");
        Path file = RawFile.write(
                folder, RawFile.bytes("{" + RawFile.tensor(escaped, "U8", "[1]", 0, 1) + "}  ", (byte) 7));
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            assertEquals(1, opened.entry(name).byteSize());
        }
        RawFile.write(folder, RawFile.bytes("{" + RawFile.tensor(escaped, "U8", "[1]", 0, 1) + "}"));
        assertThrown(
                SafetensorsException.class,
                file + ": tensor \"\\u0007" + "n".repeat(199)
                        + "…\" (65536 characters): data_offsets: expected to"
                        + " end within the 0 bytes of data, got 1: the file is cut short or damaged",
                () -> SafetensorsFile.open(file));
    }
}
