package dev.chagres.io;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.DoubleUnaryOperator;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Numbers of a file in another floating-point type, beside the formulas of the types in double precision. */
@Tag("L0")
class ConvertedFloatsTest {
    /** More than are converted at a time, and not whole times that. */
    private static final int COUNT = 200_001;

    private static final long SEED = 20261123;
    private static final double[] HALVES = positives(DType.FLOAT16);
    private static final double[] BRAINS = positives(DType.BFLOAT16);

    @TempDir
    private Path folder;

    /** Returns the number that 16 bits without the sign stand for: of a type with so many bits of mantissa, and this bias. */
    private static double value(int bits, int mantissaBits, int bias) {
        int exponent = bits >> mantissaBits;
        int mantissa = bits & (1 << mantissaBits) - 1;
        return exponent == 0
                ? Math.scalb((double) mantissa, 1 - bias - mantissaBits)
                : Math.scalb((double) (mantissa + (1 << mantissaBits)), exponent - bias - mantissaBits);
    }

    private static double[] positives(DType dtype) {
        int mantissaBits = dtype == DType.FLOAT16 ? 10 : 7;
        int bias = dtype == DType.FLOAT16 ? 15 : 127;
        int infinity = 0x7fff >> mantissaBits << mantissaBits;
        double[] values = new double[infinity];
        Arrays.setAll(values, bits -> value(bits, mantissaBits, bias));
        return values;
    }

    /** Returns the nearest number of a type, whose numbers from 0 on {@code of} has in order of their bits. */
    private static double nearest(double value, double... of) {
        double magnitude = Math.abs(value);
        int found = Arrays.binarySearch(of, magnitude);
        if (found >= 0) {
            return value;
        }
        int above = -found - 1;
        int below = above - 1;
        int last = of.length - 1;
        double next = above <= last ? of[above] : of[last] + (of[last] - of[last - 1]);
        double lower = magnitude - of[below];
        double upper = next - magnitude;
        boolean up = upper < lower || upper == lower && below % 2 == 1;
        double rounded = !up ? of[below] : above <= last ? next : Double.POSITIVE_INFINITY;
        return Math.copySign(rounded, value);
    }

    private Path file(DType dtype, MemorySegment bytes) {
        Path path = folder.resolve("numbers");
        TensorSpec spec = new TensorSpec("x", dtype, Shape.of(bytes.byteSize() / dtype.byteSize()));
        SafetensorsWriter.write(path, List.of(TensorSource.of(spec, bytes)), Map.of());
        return path;
    }

    private static double number(DType dtype, MemorySegment memory, long index) {
        if (dtype == DType.FLOAT32) {
            return memory.getAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, index);
        }
        int bits = memory.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, index) & 0xffff;
        double[] values = dtype == DType.FLOAT16 ? HALVES : BRAINS;
        int magnitude = bits & 0x7fff;
        double value = magnitude < values.length
                ? values[magnitude]
                : magnitude == values.length ? Double.POSITIVE_INFINITY : Double.NaN;
        return bits == magnitude ? value : -value;
    }

    private void assertConverts(DType from, MemorySegment bytes, DType to, DoubleUnaryOperator expected) {
        long count = bytes.byteSize() / from.byteSize();
        try (SafetensorsFile file = SafetensorsFile.open(file(from, bytes))) {
            MemorySegment all = MemorySegment.ofArray(new byte[Math.toIntExact(count * to.byteSize())]);
            file.entry("x").copyTo(to, 0, all);
            for (long i = 0; i < count; i++) {
                double value = number(from, bytes, i);
                assertEquals(
                        expected.applyAsDouble(value),
                        number(to, all, i),
                        () -> from + " " + value + " in " + to + ", seed " + SEED);
            }
            MemorySegment piece =
                    MemorySegment.ofArray(new byte[7 * to.byteSize() + 1]).asSlice(1);
            long offset = (count - 9) * to.byteSize();
            file.entry("x").copyTo(to, offset, piece);
            assertEquals(-1, piece.mismatch(all.asSlice(offset, piece.byteSize())), "at an odd address");
        }
    }

    /** All numbers of 16 bits, infinity and NaN among them: FLOAT32 has the same ones. */
    @ParameterizedTest
    @CsvSource({"FLOAT16", "BFLOAT16"})
    void widerTypesHaveTheSameNumbers(DType from) {
        short[] bits = new short[1 << 16];
        for (int i = 0; i < bits.length; i++) {
            bits[i] = (short) i;
        }
        assertConverts(from, MemorySegment.ofArray(bits), DType.FLOAT32, value -> value);
    }

    @ParameterizedTest
    @CsvSource({"FLOAT32, FLOAT16", "FLOAT32, BFLOAT16", "BFLOAT16, FLOAT16", "FLOAT16, BFLOAT16"})
    void narrowerTypesHaveTheNearestNumbers(DType from, DType to) {
        double[] of = to == DType.FLOAT16 ? HALVES : BRAINS;
        DoubleUnaryOperator expected =
                value -> Double.isNaN(value) || Double.isInfinite(value) ? value : nearest(value, of);
        var random = new Random(SEED);
        if (from != DType.FLOAT32) {
            short[] bits = new short[1 << 16];
            for (int i = 0; i < bits.length; i++) {
                bits[i] = (short) i;
            }
            assertConverts(from, MemorySegment.ofArray(bits), to, expected);
            return;
        }
        float[] values = new float[COUNT];
        for (int i = 0; i < COUNT; i++) {
            int below = random.nextInt(of.length - 1);
            float between = (float) ((of[below] + of[below + 1]) / 2); // as near one as the other
            values[i] = switch (i % 5) {
                case 0 -> Float.intBitsToFloat(random.nextInt());
                case 1 -> between;
                case 2 -> Math.nextUp(-between);
                case 3 -> Math.nextUp(between);
                default -> (float) random.nextGaussian();
            };
        }
        double last = of[of.length - 1];
        double half = (last - of[of.length - 2]) / 2;
        values[0] = (float) (last + half);
        values[1] = Math.nextDown(values[0]);
        values[2] = Float.NaN;
        values[3] = Float.NEGATIVE_INFINITY;
        values[4] = -0f;
        values[5] = Float.MAX_VALUE;
        assertConverts(from, MemorySegment.ofArray(values), to, expected);
    }

    @Test
    void whatCannotBeConvertedIsRefused() {
        try (SafetensorsFile file =
                SafetensorsFile.open(file(DType.FLOAT32, MemorySegment.ofArray(new float[] {1, 2, 3})))) {
            SafetensorsEntry entry = file.entry("x");
            MemorySegment four = MemorySegment.ofArray(new byte[4]);
            assertThrown(
                    IllegalArgumentException.class,
                    "dtype: expected that of \"x\" F32[3], or FLOAT32, BFLOAT16 or FLOAT16 where it is another of these,"
                            + " got INT32",
                    () -> entry.copyTo(DType.INT32, 0, four));
            assertThrown(
                    IllegalArgumentException.class,
                    "dtype: expected that of \"x\" F32[3], or FLOAT32, BFLOAT16 or FLOAT16 where it is another of these,"
                            + " got FLOAT8_E4M3",
                    () -> entry.copyTo(DType.FLOAT8_E4M3, 0, four));
            assertThrown(
                    IndexOutOfBoundsException.class,
                    "offset: expected 4 bytes within the 6 of \"x\" F32[3] in BFLOAT16, got 4",
                    () -> entry.copyTo(DType.BFLOAT16, 4, four));
            assertThrown(
                    IllegalArgumentException.class,
                    "offset and target: expected whole elements of 2 bytes, got 4 bytes from 1 on",
                    () -> entry.copyTo(DType.FLOAT16, 1, four));
            assertThrown(
                    IllegalArgumentException.class,
                    "target: expected memory that can be written, got read-only memory",
                    () -> entry.copyTo(DType.FLOAT16, 0, four.asReadOnly()));
        }
        try (SafetensorsFile file = SafetensorsFile.open(file(DType.INT32, MemorySegment.ofArray(new int[] {1})))) {
            assertThrown(
                    IllegalArgumentException.class,
                    "dtype: expected that of \"x\" I32[1], or FLOAT32, BFLOAT16 or FLOAT16 where it is another of these,"
                            + " got FLOAT32",
                    () -> file.entry("x").copyTo(DType.FLOAT32, 0, MemorySegment.ofArray(new byte[4])));
        }
    }
}
