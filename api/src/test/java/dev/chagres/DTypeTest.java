package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.witness.Rounding;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.SplittableRandom;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Floats in the host's memory, beside the formulas of their types in double precision. */
@Tag("L0")
class DTypeTest {
    private static final int PATTERNS = 1 << 16;
    private static final int DRAWN = 1 << 18;
    private static final long SEED = 20261130;

    /** Returns the number of 16 bits: sign, exponent, mantissa. */
    private static double number(DType dtype, int bits) {
        int mantissaBits = dtype == DType.FLOAT16 ? 10 : 7;
        int most = (1 << 15 - mantissaBits) - 1;
        int exponent = bits >> mantissaBits & most;
        int mantissa = bits & (1 << mantissaBits) - 1;
        double magnitude = exponent == most
                ? mantissa == 0 ? Double.POSITIVE_INFINITY : Double.NaN
                : exponent == 0
                        ? Math.scalb((double) mantissa, 1 - most / 2 - mantissaBits)
                        : Math.scalb((double) (mantissa + (1 << mantissaBits)), exponent - most / 2 - mantissaBits);
        return bits >> 15 == 0 ? magnitude : -magnitude;
    }

    /** Each pattern is read as its number and written as itself; NaN gets the bit that makes it quiet. */
    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void everyPatternIsReadAndWritten(DType dtype) {
        MemorySegment memory = MemorySegment.ofArray(new byte[2 * PATTERNS + 1]).asSlice(1); // at an odd address
        for (int i = 0; i < PATTERNS; i++) {
            memory.setAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i, (short) i);
        }
        float[] values = new float[PATTERNS];
        dtype.toFloats(memory, 0, values, 0, PATTERNS);
        MemorySegment back = MemorySegment.ofArray(new short[PATTERNS]);
        dtype.fromFloats(values, 0, back, 0, PATTERNS);
        int quiet = dtype == DType.FLOAT16 ? 0x200 : 0x40;
        for (int i = 0; i < PATTERNS; i++) {
            double number = number(dtype, i);
            assertEquals(number, values[i], Integer.toHexString(i));
            int written = back.getAtIndex(ValueLayout.JAVA_SHORT, i) & 0xffff;
            assertEquals(Double.isNaN(number) ? i | quiet : i, written, Integer.toHexString(i));
        }
    }

    /** Drawn bits, all ties between neighbours, and the floats beside those. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void floatsAreRoundedToNearestEven(DType dtype) {
        float[] values = new float[DRAWN + 3 * PATTERNS];
        var random = new SplittableRandom(SEED);
        for (int i = 0; i < DRAWN; i++) {
            values[i] = Float.intBitsToFloat(random.nextInt());
        }
        DType halves = dtype == DType.FLOAT32 ? DType.FLOAT16 : dtype;
        for (int i = 0; i < PATTERNS; i++) {
            float tie = (float) ((number(halves, i) + number(halves, i + 1 & 0xffff)) / 2);
            values[DRAWN + 3 * i] = Math.nextDown(tie);
            values[DRAWN + 3 * i + 1] = tie;
            values[DRAWN + 3 * i + 2] = Math.nextUp(tie);
        }
        MemorySegment memory = MemorySegment.ofArray(new byte[values.length * dtype.byteSize()]);
        dtype.fromFloats(values, 0, memory, 0, values.length);
        for (int i = 0; i < values.length; i++) {
            double stored = dtype == DType.FLOAT32
                    ? memory.getAtIndex(ValueLayout.JAVA_FLOAT_UNALIGNED, i)
                    : number(dtype, memory.getAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i) & 0xffff);
            int at = i;
            assertEquals(
                    (float) Rounding.round(values[i], dtype),
                    (float) stored,
                    () -> Float.toHexString(values[at]) + ", seed " + SEED);
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void partsAreConverted(DType dtype) {
        MemorySegment memory = MemorySegment.ofArray(new byte[5 * dtype.byteSize()]);
        dtype.fromFloats(new float[] {9, 1, -2, 9}, 1, memory, 2, 2);
        float[] back = {7, 7, 7, 7};
        dtype.toFloats(memory, 1, back, 1, 3);
        assertEquals("7.0 0.0 1.0 -2.0", back[0] + " " + back[1] + " " + back[2] + " " + back[3]);
        dtype.fromFloats(back, 4, memory, 5, 0);
    }

    @Test
    void whatDoesNotFitIsRefused() {
        float[] two = {1, 2};
        MemorySegment three = MemorySegment.ofArray(new short[3]);
        DType dtype = DType.BFLOAT16;
        assertThrown(
                IndexOutOfBoundsException.class,
                "values: expected 2 elements within 2, got 1 as the first",
                () -> dtype.fromFloats(two, 1, three, 0, 2));
        assertThrown(
                IndexOutOfBoundsException.class,
                "target: expected 2 elements within 3, got 9223372036854775807 as the first",
                () -> dtype.fromFloats(two, 0, three, Long.MAX_VALUE, 2));
        assertThrown(
                IndexOutOfBoundsException.class,
                "source: expected 1 elements within 3, got -1 as the first",
                () -> dtype.toFloats(three, -1, two, 0, 1));
        assertThrown(
                IndexOutOfBoundsException.class,
                "values: expected -1 elements within 2, got 0 as the first",
                () -> dtype.toFloats(three, 0, two, 0, -1));
        assertThrown(
                IllegalArgumentException.class,
                "dtype: expected FLOAT32, FLOAT16 or BFLOAT16, got INT16",
                () -> DType.INT16.toFloats(three, 0, two, 0, 1));
        assertThrown(
                IllegalArgumentException.class,
                "target: expected memory that can be written, got read-only memory",
                () -> dtype.fromFloats(two, 0, three.asReadOnly(), 0, 2));
        Arena arena = Arena.ofConfined();
        MemorySegment closed = arena.allocate(4);
        arena.close();
        assertThrown(
                IllegalStateException.class,
                "source: expected memory that is open to thread \""
                        + Thread.currentThread().getName() + "\", got a segment whose arena is closed",
                () -> dtype.toFloats(closed, 0, two, 0, 1));
    }
}
