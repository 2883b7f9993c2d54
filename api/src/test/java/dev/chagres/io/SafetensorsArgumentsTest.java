package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static dev.chagres.io.WriterSources.bytes;
import static dev.chagres.io.WriterSources.spec;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.io.WriterSources.Filled;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What is refused to be written, and the largest that is not. */
@Tag("L0")
class SafetensorsArgumentsTest {
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

    @Test
    void argumentsThatDoNotFitAreRefused() {
        assertThrown(
                IllegalArgumentException.class,
                "tensors: expected each name once, got \"a\" twice",
                () -> SafetensorsWriter.write(file, List.of(bytes("a", 1), bytes("a", 2)), Map.of()));
        assertThrown(
                IllegalArgumentException.class,
                "metadata: expected texts that UTF-8 can hold, got half a surrogate pair in \"k\"",
                () -> SafetensorsWriter.write(file, List.of(), Map.of("k", "\ud800")));
        assertThrown(
                NullPointerException.class,
                "metadata: the text of \"k\": expected a value, got null",
                () -> SafetensorsWriter.write(file, List.of(), Collections.singletonMap("k", null)));
        assertThrown(
                NullPointerException.class,
                "metadata: a key: expected a value, got null",
                () -> SafetensorsWriter.write(file, List.of(), Collections.singletonMap(null, "v")));
        assertThrown(
                IllegalArgumentException.class,
                "metadata: expected keys of at most 65536 characters, got \"" + "k".repeat(200)
                        + "…\" (65537 characters)",
                () -> SafetensorsWriter.write(file, List.of(), Map.of("k".repeat(65_537), "")));
        assertThrown(
                IllegalArgumentException.class,
                "tensors, metadata: expected a header of at most 100000000 bytes, got 100000032; write several files",
                () -> SafetensorsWriter.write(file, List.of(), Map.of("k", "v".repeat(100_000_000))));
        assertThrown(
                IllegalArgumentException.class,
                "bytes: expected 4 for \"a\" FLOAT32[1], got 3",
                () -> TensorSource.of(spec("a", DType.FLOAT32, 1), MemorySegment.ofArray(new byte[3])));
        assertThrown(
                IllegalArgumentException.class,
                "name: expected any but __metadata__, under which the format keeps the metadata; give the tensor another"
                        + " name",
                () -> spec("__metadata__", DType.BYTE));
        assertThrown(
                IllegalArgumentException.class,
                "name: expected at most 65536 characters that UTF-8 can hold, got \"\\udc00\"",
                () -> spec("\udc00", DType.BYTE));
        assertThrown(
                IllegalArgumentException.class,
                "shape: expected fewer bits than a long can count, got INT64[2305843009213693952, 4]",
                () -> spec("a", DType.INT64, 1L << 61, 4));
        List<TensorSource> sources = new ArrayList<>();
        for (int i = 0; i < 16; i++) {
            sources.add(new Filled(spec("huge" + i, DType.BYTE, 1L << 59), (offset, target) -> {
                throw new AssertionError("not asked for");
            }));
        }
        assertThrown(
                IllegalArgumentException.class,
                "tensors: expected fewer bytes in all than a long can count, got more with \"huge15\""
                        + " BYTE[576460752303423488]",
                () -> SafetensorsWriter.write(file, sources, Map.of()));
        assertTrue(Files.notExists(file));
    }

    @Test
    void theLongestNamesAreWrittenAndRead() {
        String name = "\ud83d\ude00".repeat(32_768);
        SafetensorsWriter.write(file, List.of(bytes(name, 3)), Map.of(name, name));
        assertArrayEquals(new byte[] {3}, content(name));
        assertEquals(131_072, name.getBytes(StandardCharsets.UTF_8).length);
    }
}
