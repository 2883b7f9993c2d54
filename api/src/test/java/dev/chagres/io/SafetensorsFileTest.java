package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static dev.chagres.io.WriterSources.spec;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Reading: contents wherever they lie, and strictness about what is in the file. */
@Tag("L0")
class SafetensorsFileTest {
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
    void dataMayBeginAtAnyByte() throws IOException {
        for (int spaces = 0; spaces < 8; spaces++) {
            String header = "{" + RawFile.tensor("a", "U8", "[1]", 0, 1) + "," + RawFile.tensor("b", "I32", "[2]", 1, 9)
                    + "}" + " ".repeat(spaces);
            Path file = RawFile.write(folder, RawFile.bytes(header, new byte[] {9, 1, 0, 0, 0, 0, 1, 0, 0}));
            try (SafetensorsFile opened = SafetensorsFile.open(file)) {
                int[] numbers = new int[2];
                opened.entry("b").copyTo(MemorySegment.ofArray(numbers));
                assertArrayEquals(new int[] {1, 256}, numbers);
                assertEquals(256, opened.entry("b").bytes().get(ValueLayout.JAVA_INT_UNALIGNED, 4));
                assertTrue(opened.entry("b").bytes().isReadOnly());
            }
        }
    }

    @Test
    void tensorsAreInTheOrderOfTheirData() throws IOException {
        String header = "{\"__metadata__\":{\"y\":\"1\",\"x\":\"\"}," + RawFile.tensor("z", "U8", "[1]", 2, 3) + ","
                + RawFile.tensor("e", "F64", "[0,7]", 2, 2) + "," + RawFile.tensor("", "F4", "[2,2]", 0, 2) + "} \n";
        try (SafetensorsFile file = SafetensorsFile.open(RawFile.write(folder, RawFile.bytes(header, new byte[3])))) {
            assertEquals(List.of("", "e", "z"), List.copyOf(file.entries().keySet()));
            assertEquals(List.of("y", "x"), List.copyOf(file.metadata().keySet()));
            assertThrows(
                    UnsupportedOperationException.class, () -> file.entries().clear());
            assertThrows(
                    UnsupportedOperationException.class, () -> file.metadata().clear());
            file.entry("z").sizes()[0] = 5;
            assertArrayEquals(new long[] {1}, file.entry("z").sizes());
            assertEquals("SafetensorsFile " + file.path() + " with 3 tensors", file.toString());
        }
    }

    @Test
    void copiesGoToMemoryOfAnyKind() throws IOException {
        byte[] content = new byte[LARGE + 12];
        try (SafetensorsFile file = SafetensorsFile.open(large(content));
                Arena arena = Arena.ofConfined()) {
            SafetensorsEntry entry = file.entry("a");
            MemorySegment memory = arena.allocate(content.length);
            entry.copyTo(memory);
            assertArrayEquals(content, memory.toArray(ValueLayout.JAVA_BYTE));
            byte[] bytes = new byte[content.length];
            entry.copyTo(MemorySegment.ofArray(bytes));
            assertArrayEquals(content, bytes);
            long[] longs = new long[content.length / 8];
            entry.copyTo(4, MemorySegment.ofArray(longs));
            assertArrayEquals(
                    Arrays.copyOfRange(content, 4, content.length),
                    MemorySegment.ofArray(longs).toArray(ValueLayout.JAVA_BYTE));
            entry.copyTo(content.length, MemorySegment.NULL);
        }
    }

    @Test
    void aCopyThatDoesNotFitIsRefused() throws IOException {
        Path path =
                RawFile.write(folder, RawFile.bytes("{" + RawFile.tensor("a", "U8", "[3]", 0, 3) + "}", new byte[3]));
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            SafetensorsEntry entry = file.entry("a");
            MemorySegment four = MemorySegment.ofArray(new byte[4]);
            assertThrown(
                    IllegalArgumentException.class,
                    "target: expected 3 bytes for \"a\" U8[3], got 4",
                    () -> entry.copyTo(four));
            assertThrown(
                    IndexOutOfBoundsException.class,
                    "offset: expected 2 bytes within the 3 of \"a\" U8[3], got 2",
                    () -> entry.copyTo(2, four.asSlice(0, 2)));
            assertThrown(
                    IndexOutOfBoundsException.class,
                    "offset: expected 2 bytes within the 3 of \"a\" U8[3], got -1",
                    () -> entry.copyTo(-1, four.asSlice(0, 2)));
            assertThrown(
                    IllegalArgumentException.class,
                    "target: expected memory that can be written, got read-only memory",
                    () -> entry.copyTo(four.asSlice(0, 3).asReadOnly()));
            assertThrown(
                    SafetensorsException.class,
                    path + ": tensor \"b\": expected one of the file's 1 tensors, got none of this name",
                    () -> file.entry("b"));
        }
    }

    @Test
    void everyDifferenceIsListedAtOnce() throws IOException {
        String header =
                "{" + RawFile.tensor("weight", "F32", "[2,1]", 0, 8) + "," + RawFile.tensor("bias", "F32", "[2]", 8, 16)
                        + "," + RawFile.tensor("more", "BOOL", "[1]", 16, 17) + ","
                        + RawFile.tensor("fine", "U8", "[1]", 17, 18)
                        + "}";
        Path path = RawFile.write(folder, RawFile.bytes(header, new byte[18]));
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            assertThrown(
                    SafetensorsException.class,
                    path + ": the file holds other tensors than expected: 2 missing, 1 unexpected, 2 of another type or"
                            + " shape; nothing was loaded\n"
                            + "  missing: \"gone\" F16[3]\n"
                            + "  different: expected \"bias\" BF16[2], got \"bias\" F32[2]\n"
                            + "  different: expected \"weight\" F32[1, 2], got \"weight\" F32[2, 1]\n"
                            + "  unexpected: \"more\" BOOL[1]\n"
                            + "  missing: \"lost\" I64[]",
                    () -> file.entriesExactly(List.of(
                            spec("gone", DType.FLOAT16, 3),
                            spec("bias", DType.BFLOAT16, 2),
                            spec("fine", DType.BYTE, 1),
                            spec("lost", DType.INT64),
                            spec("weight", DType.FLOAT32, 1, 2))));
            assertThrown(
                    IllegalArgumentException.class,
                    "expected: each name once, got \"fine\" twice",
                    () -> file.entriesExactly(List.of(spec("fine", DType.BYTE, 1), spec("fine", DType.BYTE, 1))));
        }
    }

    /** Of another model's run: weights first, what an optimizer keeps of them next, what a recipe keeps last. */
    @Test
    void weightsAreListedFirst() throws IOException {
        String header = "{" + RawFile.tensor("step", "I64", "[]", 0, 8) + ","
                + RawFile.tensor("quantizers.forward.float8_e4m3.amax_history", "F32", "[1,1]", 8, 12) + ","
                + RawFile.tensor("old.input.scale", "F32", "[1]", 12, 16) + ","
                + RawFile.tensor("body.weight.exp_avg", "F32", "[1]", 16, 20) + ","
                + RawFile.tensor("old.weight.exp_avg", "F32", "[1]", 20, 24) + ","
                + RawFile.tensor("body.weight", "BF16", "[1]", 24, 26) + ","
                + RawFile.tensor("old.weight", "BF16", "[1]", 26, 28) + "}";
        Path path = RawFile.write(folder, RawFile.bytes(header, new byte[28]));
        List<TensorSpec> expected = new ArrayList<>();
        for (int i = 0; i < 21; i++) {
            expected.add(spec("new." + i + ".input.scale", DType.FLOAT32, 1));
        }
        expected.add(spec("body.weight.exp_avg", DType.FLOAT32, 2));
        expected.add(spec("body.weight", DType.BFLOAT16, 2));
        expected.add(spec("new.weight", DType.BFLOAT16, 2));
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            StringBuilder scales = new StringBuilder();
            for (int i = 0; i < 19; i++) {
                scales.append("  missing: \"new.").append(i).append(".input.scale\" F32[1]\n");
            }
            assertThrown(
                    SafetensorsException.class,
                    path
                            + ": the file holds other tensors than expected: 22 missing, 5 unexpected, 2 of another type or"
                            + " shape; nothing was loaded\n"
                            + "  missing: \"new.weight\" BF16[2]\n"
                            + "  different: expected \"body.weight\" BF16[2], got \"body.weight\" BF16[1]\n"
                            + "  unexpected: \"old.weight\" BF16[1]\n"
                            + "  different: expected \"body.weight.exp_avg\" F32[2], got \"body.weight.exp_avg\" F32[1]\n"
                            + "  unexpected: \"step\" I64[]\n"
                            + "  unexpected: \"old.weight.exp_avg\" F32[1]\n"
                            + scales
                            + "  unexpected: \"quantizers.forward.float8_e4m3.amax_history\" F32[1, 1]\n"
                            + "  unexpected: \"old.input.scale\" F32[1]\n"
                            + "  missing: 2 more",
                    () -> file.entriesExactly(expected));
        }
    }

    @Test
    void whatFitsComesInTheExpectedOrder() throws IOException {
        String header =
                "{" + RawFile.tensor("a", "F32", "[2,1]", 0, 8) + "," + RawFile.tensor("b", "I64", "[]", 8, 16) + "}";
        try (SafetensorsFile file = SafetensorsFile.open(RawFile.write(folder, RawFile.bytes(header, new byte[16])))) {
            List<SafetensorsEntry> found =
                    file.entriesExactly(List.of(spec("b", DType.INT64), spec("a", DType.FLOAT32, 2, 1)));
            assertEquals("[\"b\" I64[], \"a\" F32[2, 1]]", found.toString());
        }
    }

    @Test
    void aSparseFileOfManyGigabytesIsRead() throws IOException {
        long size = 5L << 30;
        Path path = RawFile.write(
                folder, RawFile.bytes("{" + RawFile.tensor("a", "F32", "[" + size / 4 + "]", 0, size) + "}"));
        long begin = Files.size(path);
        try (RandomAccessFile sparse = new RandomAccessFile(path.toFile(), "rw")) {
            sparse.setLength(begin + size);
            sparse.seek(begin + size - 4);
            sparse.write(new byte[] {0, 0, (byte) 0x80, 0x3f});
        }
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            SafetensorsEntry entry = file.entry("a");
            float[] last = new float[2];
            entry.copyTo(size - 8, MemorySegment.ofArray(last));
            assertArrayEquals(new float[] {0, 1}, last);
            assertEquals(1f, entry.bytes().get(ValueLayout.JAVA_FLOAT_UNALIGNED, size - 4));
        }
    }

    @Test
    void typesHaveTheFormatsNames() {
        assertEquals(SafetensorsType.BF16, SafetensorsType.of(DType.BFLOAT16));
        assertEquals(Optional.of(DType.BYTE), SafetensorsType.U8.dtype());
        assertEquals(Optional.of(DType.FLOAT64), SafetensorsType.F64.dtype());
        assertEquals(Optional.empty(), SafetensorsType.BOOL.dtype());
        for (DType dtype : List.of(
                DType.BYTE, DType.INT16, DType.INT32, DType.INT64, DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)) {
            SafetensorsType type = SafetensorsType.of(dtype);
            assertEquals(Optional.of(dtype), type.dtype());
            assertEquals(8 * dtype.byteSize(), type.bitSize());
        }
        assertEquals(Map.of(4, 1L, 6, 2L, 8, 8L, 16, 4L, 32, 3L, 64, 4L), typesByBitSize());
    }

    private static Map<Integer, Long> typesByBitSize() {
        return Arrays.stream(SafetensorsType.values())
                .collect(Collectors.groupingBy(SafetensorsType::bitSize, Collectors.counting()));
    }
}
