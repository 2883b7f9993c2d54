package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.URISyntaxException;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Files that the Python package safetensors wrote: read, and written again with the same bytes. */
@Tag("L0")
class SafetensorsVectorTest {
    private static final String BYTES = "größe \"\t";

    @TempDir
    private Path folder;

    private static Path vector(String name) {
        URL resource = Objects.requireNonNull(SafetensorsVectorTest.class.getResource("/vectors/" + name));
        try {
            return Path.of(resource.toURI());
        } catch (URISyntaxException invalid) {
            throw new AssertionError(invalid);
        }
    }

    private static void assertIs(SafetensorsEntry entry, DType dtype, long... sizes) {
        assertEquals(dtype, entry.dtype());
        assertEquals(Shape.of(sizes), entry.shape());
        assertArrayEquals(sizes, entry.sizes());
        assertEquals(Shape.of(sizes).count() * dtype.byteSize(), entry.byteSize());
    }

    @Test
    void typesShapesAndNumbersAreRead() {
        try (SafetensorsFile file = SafetensorsFile.open(vector("tensors.safetensors"))) {
            assertEquals(Map.of("format", "np"), file.metadata());
            assertEquals(
                    List.of("step", "layers.0.weight", "ids", "layers.0.bias", "halves", "nothing", BYTES),
                    List.copyOf(file.entries().keySet()));
            assertIs(file.entry("step"), DType.INT64);
            assertEquals(1L << 40, file.entry("step").bytes().get(ValueLayout.JAVA_LONG_UNALIGNED, 0));
            assertIs(file.entry("layers.0.weight"), DType.FLOAT32, 3, 5);
            float[] weight = new float[15];
            file.entry("layers.0.weight").copyTo(MemorySegment.ofArray(weight));
            for (int i = 0; i < weight.length; i++) {
                assertEquals(-4.5f + i, weight[i]);
            }
            assertIs(file.entry("ids"), DType.INT32, 2, 2);
            int[] ids = new int[4];
            file.entry("ids").copyTo(MemorySegment.ofArray(ids));
            assertArrayEquals(new int[] {-2, -1, 0, 1}, ids);
            assertIs(file.entry("layers.0.bias"), DType.BFLOAT16, 7);
            assertIs(file.entry("halves"), DType.FLOAT16, 1, 1, 1, 9);
            for (int i = 0; i < 7; i++) {
                short upper = file.entry("layers.0.bias").bytes().get(ValueLayout.JAVA_SHORT_UNALIGNED, 2L * i);
                assertEquals(-1f + i, Float.intBitsToFloat(upper << 16));
            }
            for (int i = 0; i < 9; i++) {
                short half = file.entry("halves").bytes().get(ValueLayout.JAVA_SHORT_UNALIGNED, 2L * i);
                assertEquals(0.5f + i, Float.float16ToFloat(half));
            }
            assertIs(file.entry("nothing"), DType.FLOAT16, 0, 4);
            file.entry("nothing").copyTo(MemorySegment.ofArray(new byte[0]));
            assertIs(file.entry(BYTES), DType.BYTE, 5);
            assertArrayEquals(
                    new byte[] {-6, -5, -4, -3, -2}, file.entry(BYTES).bytes().toArray(ValueLayout.JAVA_BYTE));
        }
    }

    @Test
    void writtenAgainTheyHaveTheSameBytes() throws IOException {
        Path vector = vector("tensors.safetensors");
        Path written = folder.resolve("written.safetensors");
        try (SafetensorsFile file = SafetensorsFile.open(vector)) {
            List<TensorSource> sources = new ArrayList<>();
            for (SafetensorsEntry entry : file.entries().values()) {
                sources.add(TensorSource.of(new TensorSpec(entry.name(), entry.dtype(), entry.shape()), entry.bytes()));
            }
            SafetensorsWriter.write(written, sources, file.metadata());
        }
        assertArrayEquals(Files.readAllBytes(vector), Files.readAllBytes(written));
    }

    @Test
    void typesAndShapesThatTheApiLacksAreListedAndRefused() {
        Path vector = vector("tensors_other.safetensors");
        try (SafetensorsFile file = SafetensorsFile.open(vector)) {
            assertEquals(
                    "[\"energies\" F64[3], \"deep\" F32[1, 2, 1, 2, 1], \"scales\" F8_E4M3[2], \"mask\" BOOL[3]]",
                    file.entries().values().toString());
            SafetensorsEntry energies = file.entry("energies");
            assertEquals(24, energies.byteSize());
            assertEquals(64, energies.type().bitSize());
            assertEquals(2.25, energies.bytes().get(ValueLayout.JAVA_DOUBLE_UNALIGNED, 16));
            assertThrown(
                    SafetensorsException.class,
                    vector
                            + ": tensor \"mask\": dtype: expected U8, I8, I16, I32, U32, I64, U64, F64, F32, F16 or BF16, got BOOL,"
                            + " which tensors here do not have; convert it first",
                    file.entry("mask")::dtype);
            assertEquals(DType.FLOAT64, energies.dtype());
            assertEquals(DType.FLOAT32, file.entry("deep").dtype());
            assertArrayEquals(new long[] {1, 2, 1, 2, 1}, file.entry("deep").sizes());
            assertThrown(
                    SafetensorsException.class,
                    vector + ": tensor \"deep\": shape: expected at most 4 dimensions, got [1, 2, 1, 2, 1]",
                    file.entry("deep")::shape);
            assertEquals(SafetensorsType.F8_E4M3, file.entry("scales").type());
            assertEquals(3, file.entry("mask").byteSize());
        }
    }
}
