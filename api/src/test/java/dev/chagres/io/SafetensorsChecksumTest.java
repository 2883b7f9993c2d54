package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static dev.chagres.io.WriterSources.bytes;
import static dev.chagres.io.WriterSources.spec;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files with checksums of themselves. */
@Tag("L0")
class SafetensorsChecksumTest {
    private static final String MEND =
            "; take another copy of the file. A program that changes a file on purpose leaves out"
                    + " the metadata chagres.crc32c.*";

    @TempDir
    private Path folder;

    private Path file;

    @BeforeEach
    void write() {
        file = folder.resolve("model.safetensors");
        TensorSource numbers = TensorSource.of(spec("b", DType.FLOAT32, 2), MemorySegment.ofArray(new float[] {1, -2}));
        TensorSource digits = bytes("a", "123456789".chars().toArray());
        TensorSource nothing = TensorSource.of(spec("nothing", DType.BYTE, 0), MemorySegment.NULL);
        SafetensorsWriter.writeWithChecksums(file, List.of(digits, numbers, nothing), Map.of("k", "v"));
    }

    private String header() throws IOException {
        byte[] all = Files.readAllBytes(file);
        return new String(all, 8, all.length - 8 - 17, StandardCharsets.UTF_8);
    }

    /** Opens the file and reads every tensor, or says what is damaged. */
    private void read() {
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            opened.entries().values().forEach(SafetensorsEntry::verify);
        }
    }

    /** E3069283 is the checksum of 123456789 by RFC 3720. */
    @Test
    void checksumsAreTextsOfTheHeader() throws IOException {
        String header = header();
        assertTrue(header.startsWith("{\"__metadata__\":{\"chagres.crc32c.header\":\""), header);
        assertTrue(header.contains("e306928300000000\",\"k\":\"v\"}"), header);
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            assertEquals(Map.of("k", "v"), opened.metadata());
            byte[] digits = new byte[9];
            opened.entry("a").copyTo(MemorySegment.ofArray(digits));
            assertArrayEquals("123456789".getBytes(StandardCharsets.US_ASCII), digits);
        }
        read();
    }

    /** Each single bit of the file, so each way to lose one. */
    @Test
    void everyBitThatFlipsIsNoticed() throws IOException {
        byte[] good = Files.readAllBytes(file);
        int header = header().length() + 8;
        for (int bit = 0; bit < 8 * good.length; bit++) {
            byte[] damaged = good.clone();
            damaged[bit / 8] ^= (byte) (1 << bit % 8);
            Files.write(file, damaged);
            var e = assertThrows(SafetensorsException.class, this::read, "bit " + bit);
            String place = bit / 8 < header ? "header: " : bit / 8 < header + 8 ? "tensor \"b\": " : "tensor \"a\": ";
            assertTrue(e.getMessage().startsWith(file + ": " + place), e.getMessage() + " of bit " + bit);
        }
    }

    @Test
    void damageIsNamedHoweverATensorIsRead() throws IOException {
        byte[] bytes = Files.readAllBytes(file);
        bytes[bytes.length - 1] = '8';
        Files.write(file, bytes);
        String damage = file + ": tensor \"a\": damaged since it was written: expected the checksum \"e3069283\", got ";
        try (SafetensorsFile opened = SafetensorsFile.open(file)) {
            SafetensorsEntry entry = opened.entry("a");
            for (var e : List.of(
                    assertThrows(SafetensorsException.class, entry::verify),
                    assertThrows(SafetensorsException.class, () -> entry.copyTo(MemorySegment.ofArray(new byte[9]))))) {
                assertTrue(e.getMessage().startsWith(damage) && e.getMessage().endsWith(MEND), e.getMessage());
                assertEquals("a", e.tensor().orElseThrow());
            }
            opened.entry("b").verify();
        }
    }

    /** As a program that copies the metadata of a file to another one. */
    @Test
    void checksumsOfAnotherFileAreRefused() throws IOException {
        String other = header().replace("\"k\":\"v\"", "\"k\":\"w\"");
        byte[] data = new byte[17];
        Files.write(file, RawFile.bytes(other, data));
        String text = assertThrows(SafetensorsException.class, this::read).getMessage();
        assertTrue(text.startsWith(file + ": header: damaged since it was written: expected the checksum "), text);
        Files.write(file, RawFile.bytes(header().replaceAll("\"chagres.crc32c.header\":\"[0-9a-f]{8}\",", ""), data));
        text = assertThrows(SafetensorsException.class, this::read).getMessage();
        assertTrue(text.contains("header: damaged since it was written: expected the checksum \"\", got "), text);
    }

    @Test
    void aFileWithoutChecksumsIsTaken() throws IOException {
        SafetensorsWriter.write(file, List.of(bytes("a", 1, 2)), Map.of("k", "v"));
        assertEquals(-1, new String(Files.readAllBytes(file), StandardCharsets.ISO_8859_1).indexOf("crc32c"));
        read();
    }

    /** Pieces larger than what is read at a time. */
    @Test
    void largeTensorsAreCheckedToTheirEnd() throws IOException {
        byte[] large = new byte[(3 << 18) + 5];
        Arrays.fill(large, (byte) 7);
        TensorSource source = TensorSource.of(spec("large", DType.BYTE, large.length), MemorySegment.ofArray(large));
        SafetensorsWriter.writeWithChecksums(file, List.of(source), Map.of());
        read();
        byte[] damaged = Files.readAllBytes(file);
        damaged[damaged.length - 1] ^= 1;
        Files.write(file, damaged);
        assertEquals(
                "large",
                assertThrows(SafetensorsException.class, this::read).tensor().orElseThrow());
    }

    @Test
    void namesOfChecksumsAreNotTaken() {
        assertThrown(
                IllegalArgumentException.class,
                "metadata: expected keys that do not begin with chagres.crc32c., which name the file's own checksums, got"
                        + " \"chagres.crc32c.x\"",
                () -> SafetensorsWriter.write(file, List.of(), Map.of("chagres.crc32c.x", "")));
    }
}
