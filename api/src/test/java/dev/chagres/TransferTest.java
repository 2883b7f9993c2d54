package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import dev.chagres.witness.Rounding;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.SplittableRandom;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Copies between host and device, with conversion and without. */
@Tag("L0")
@Tag("L1")
class TransferTest {
    private static final int PATTERNS = 1 << 16;

    private Device device;
    private Scope scope;
    private Stream stream;

    @BeforeEach
    void open() {
        device = Device.open();
        scope = device.openScope();
        stream = device.stream();
    }

    @AfterEach
    void close() {
        device.close();
    }

    @Test
    void singlePrecisionIsCopiedBitByBit() {
        float[] values = {
            0f,
            -0f,
            1.1f,
            Float.MIN_VALUE,
            -Float.MAX_VALUE,
            Float.POSITIVE_INFINITY,
            Float.NEGATIVE_INFINITY,
            Float.NaN
        };
        Tensor tensor = scope.tensor(DType.FLOAT32, values.length);
        tensor.set(stream, values);
        assertArrayEquals(bits(values), bits(tensor.toFloats(stream)));
    }

    @Test
    void integersAreCopied() {
        Tensor tensor = scope.tensor(DType.INT32, 2, 2);
        tensor.set(stream, 0, -1, Integer.MAX_VALUE, Integer.MIN_VALUE);
        assertArrayEquals(new int[] {0, -1, Integer.MAX_VALUE, Integer.MIN_VALUE}, tensor.toInts(stream));
    }

    @ParameterizedTest
    @EnumSource(names = {"BYTE", "INT8", "FLOAT8_E4M3", "FLOAT8_E5M2"})
    void everyByteIsCopied(DType dtype) {
        byte[] values = new byte[256];
        for (int i = 0; i < values.length; i++) {
            values[i] = (byte) i;
        }
        Tensor tensor = scope.tensor(dtype, 16, 16);
        tensor.set(stream, values);
        assertArrayEquals(values, tensor.toBytes(stream));
        assertArrayEquals(new byte[0], scope.tensor(dtype, 0, 3).toBytes(stream));
    }

    @Test
    void bytesOfWiderElementsAndFloatsOfBytesAreRefused() {
        Tensor quantized = scope.tensor(DType.FLOAT8_E4M3, 2);
        String wanted =
                "tensor: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT8_E4M3[2], which stand for numbers"
                        + " only with a scale; Cast.quantize and Cast.dequantize convert, byte values and toBytes copy";
        assertThrown(IllegalArgumentException.class, wanted, () -> quantized.set(stream, 1f, 2f));
        assertThrown(IllegalArgumentException.class, wanted, () -> quantized.toFloats(stream));
        assertThrown(
                IllegalArgumentException.class,
                "tensor: expected INT32 or UINT32, got FLOAT8_E4M3[2]; byte values ((byte) 1, (byte) 2) and toBytes are for it",
                () -> quantized.set(stream, 1, 2));
        assertThrown(
                IllegalArgumentException.class,
                "values: expected 2 for FLOAT8_E4M3[2], got 1",
                () -> quantized.set(stream, (byte) 1));
        String notBytes = "tensor: expected elements of BYTE, INT8, FLOAT8_E4M3 or FLOAT8_E5M2, got ";
        Tensor floats = scope.tensor(DType.BFLOAT16, 2);
        assertThrown(
                IllegalArgumentException.class,
                notBytes + "BFLOAT16[2]; float values (1f, 2f) and toFloats are for it",
                () -> floats.set(stream, (byte) 1, (byte) 2));
        assertThrown(
                IllegalArgumentException.class,
                notBytes + "BFLOAT16[2]; float values (1f, 2f) and toFloats are for it",
                () -> floats.toBytes(stream));
        assertThrown(
                IllegalArgumentException.class,
                notBytes + "INT64[1]; long values (1L, 2L) and toLongs are for it",
                () -> scope.tensor(DType.INT64, 1).toBytes(stream));
        assertThrown(
                IllegalArgumentException.class,
                notBytes + "INT16[1]; short values ((short) 1, (short) 2) and toShorts are for it",
                () -> scope.tensor(DType.INT16, 1).toBytes(stream));
    }

    @Test
    void shorts() {
        Tensor tensor = scope.tensor(DType.INT16, 3);
        tensor.set(stream, Short.MIN_VALUE, (short) 0, Short.MAX_VALUE);
        assertArrayEquals(new short[] {Short.MIN_VALUE, 0, Short.MAX_VALUE}, tensor.toShorts(stream));
        assertThrown(
                IllegalArgumentException.class,
                "values: expected 3 for INT16[3], got 1",
                () -> tensor.set(stream, (short) 1));
        assertThrown(
                IllegalArgumentException.class,
                "tensor: expected INT16, got INT32[1]; int values (1, 2) and toInts are for it",
                () -> scope.tensor(DType.INT32, 1).toShorts(stream));
    }

    /** Every number of a 16-bit type comes back as itself; every NaN as a NaN. */
    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void everyNumberOfSixteenBitsIsCopiedExactly(DType dtype) {
        float[] values = new float[PATTERNS];
        for (int i = 0; i < PATTERNS; i++) {
            values[i] = dtype == DType.BFLOAT16 ? Float.intBitsToFloat(i << 16) : Float.float16ToFloat((short) i);
        }
        Tensor tensor = scope.tensor(dtype, PATTERNS);
        tensor.set(stream, values);
        float[] back = tensor.toFloats(stream);
        for (int i = 0; i < PATTERNS; i++) {
            assertSameNumber(values[i], back[i], values[i]);
        }
    }

    /** Numbers around every tie: half a unit in the last place above each number of the type, and one float beside it. */
    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void tiesGoToEven(DType dtype) {
        float[] values = new float[3 * PATTERNS];
        for (int i = 0; i < PATTERNS; i++) {
            float lower = dtype == DType.BFLOAT16 ? Float.intBitsToFloat(i << 16) : Float.float16ToFloat((short) i);
            float next = dtype == DType.BFLOAT16
                    ? Float.intBitsToFloat((i + 1) << 16)
                    : Float.float16ToFloat((short) (i + 1));
            float tie = (float) (((double) lower + next) / 2);
            values[3 * i] = Math.nextDown(tie);
            values[3 * i + 1] = tie;
            values[3 * i + 2] = Math.nextUp(tie);
        }
        assertRounded(dtype, values);
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void randomBitsAreRoundedToNearest(DType dtype) {
        long seed = Long.getLong("chagres.test.seed", System.nanoTime());
        System.out.println("randomBitsAreRoundedToNearest: replay with -Dchagres.test.seed=" + seed);
        SplittableRandom random = new SplittableRandom(seed);
        float[] values = new float[100_000];
        for (int i = 0; i < values.length; i++) {
            values[i] = Float.intBitsToFloat(random.nextInt());
        }
        assertRounded(dtype, values);
    }

    private void assertRounded(DType dtype, float[] values) {
        Tensor tensor = scope.tensor(dtype, values.length);
        tensor.set(stream, values);
        float[] back = tensor.toFloats(stream);
        for (int i = 0; i < values.length; i++) {
            assertSameNumber((float) Rounding.round(values[i], dtype), back[i], values[i]);
        }
    }

    private static void assertSameNumber(float expected, float actual, float from) {
        if (Float.compare(expected, actual) != 0) {
            throw new AssertionError("from " + Float.toHexString(from) + " expected " + Float.toHexString(expected)
                    + ", got " + Float.toHexString(actual));
        }
    }

    @Test
    void largeNumbersOverflowAsTheTypeDoes() {
        float belowTie = Math.nextDown(65520f);
        Tensor half = scope.tensor(DType.FLOAT16, 4);
        half.set(stream, 65504f, belowTie, 65520f, -1e10f);
        assertArrayEquals(
                new float[] {65504f, 65504f, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}, half.toFloats(stream));
        Tensor brain = scope.tensor(DType.BFLOAT16, 2);
        brain.set(stream, Float.MAX_VALUE, -Float.MAX_VALUE);
        assertArrayEquals(new float[] {Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}, brain.toFloats(stream));
    }

    @Test
    void emptyTensorsAndScalarsAreCopied() {
        Tensor empty = scope.tensor(DType.FLOAT32, 3, 0);
        empty.set(stream, new float[0]);
        empty.zero(stream);
        assertEquals(0, empty.toFloats(stream).length);
        Tensor scalar = scope.tensor(DType.BFLOAT16);
        scalar.set(stream, 2.5f);
        assertArrayEquals(new float[] {2.5f}, scalar.toFloats(stream));
    }

    @Test
    void wrongElementsAreRefused() {
        Tensor floats = scope.tensor(DType.BFLOAT16, 2);
        Tensor ints = scope.tensor(DType.INT32, 2);
        String wanted = "tensor: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got ";
        String isInt = wanted + "INT32[2]; int values (1, 2) and toInts are for it";
        assertThrown(IllegalArgumentException.class, isInt, () -> ints.set(stream, 1f, 2f));
        assertThrown(IllegalArgumentException.class, isInt, () -> ints.toFloats(stream));
        assertThrown(
                IllegalArgumentException.class,
                wanted + "FLOAT64[2]; double values (1.0, 2.0) and toDoubles are for it",
                () -> scope.tensor(DType.FLOAT64, 2).set(stream, 1f, 2f));
        String notInts =
                "tensor: expected INT32 or UINT32, got BFLOAT16[2]; float values (1f, 2f) and toFloats are for it";
        assertThrown(IllegalArgumentException.class, notInts, () -> floats.set(stream, 1, 2));
        assertThrown(IllegalArgumentException.class, notInts, () -> floats.toInts(stream));
        String notLongs = "tensor: expected INT64 or UINT64, got INT32[2]; int values (1, 2) and toInts are for it";
        assertThrown(IllegalArgumentException.class, notLongs, () -> ints.set(stream, 1L, 2L));
        assertThrown(IllegalArgumentException.class, notLongs, () -> ints.toLongs(stream));
        Tensor longs = scope.tensor(DType.INT64, 2);
        assertThrown(
                IllegalArgumentException.class,
                "tensor: expected INT32 or UINT32, got INT64[2]; long values (1L, 2L) and toLongs are for it",
                () -> longs.toInts(stream));
        assertThrown(
                IllegalArgumentException.class,
                "tensor: expected INT32 or UINT32, got BYTE[2]; byte values ((byte) 1, (byte) 2) and toBytes are for it",
                () -> scope.tensor(DType.BYTE, 2).set(stream, 1, 2));
        assertThrown(
                IllegalArgumentException.class, "values: expected 2 for INT64[2], got 1", () -> longs.set(stream, 1L));
        assertThrown(
                IllegalArgumentException.class,
                "values: expected 2 for BFLOAT16[2], got 3",
                () -> floats.set(stream, 1f, 2f, 3f));
        assertThrown(
                IllegalArgumentException.class, "values: expected 2 for INT32[2], got 1", () -> ints.set(stream, 1));
    }

    @Test
    void hostBuffersAreCopiedWithoutConversion() {
        for (boolean pinned : new boolean[] {true, false}) {
            try (HostBuffer in = pinned ? HostBuffer.pinned(device, 16) : HostBuffer.pageable(device, 16);
                    HostBuffer out = pinned ? HostBuffer.pinned(device, 12) : HostBuffer.pageable(device, 12)) {
                for (int i = 0; i < 4; i++) {
                    in.segment().setAtIndex(ValueLayout.JAVA_INT, i, 100 + i);
                }
                Tensor tensor = scope.tensor(DType.INT32, 3);
                tensor.copyFrom(stream, in);
                assertArrayEquals(new int[] {100, 101, 102}, tensor.toInts(stream));
                tensor.copyTo(stream, out);
                stream.synchronize();
                assertEquals(-1, MemorySegment.mismatch(in.segment(), 0, 12, out.segment(), 0, 12));
            }
        }
    }

    @Test
    void longsAreCopiedAsTheyAre() {
        long[] values = {0, -1, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 40};
        Tensor tensor = scope.tensor(DType.INT64, 5);
        tensor.set(stream, values);
        assertArrayEquals(values, tensor.toLongs(stream));
    }

    @Test
    void nativeMemoryIsCopiedAndTheHeapIsRefused() {
        Tensor tensor = scope.tensor(DType.INT32, 3);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment in = arena.allocateFrom(ValueLayout.JAVA_INT, 4, 5, 6, 7);
            MemorySegment out = arena.allocate(12, 4);
            tensor.copyFrom(stream, in);
            assertArrayEquals(new int[] {4, 5, 6}, tensor.toInts(stream));
            tensor.copyTo(stream, out);
            stream.synchronize();
            assertEquals(-1, MemorySegment.mismatch(in, 0, 12, out, 0, 12));
        }
        MemorySegment heap = MemorySegment.ofArray(new int[3]);
        String text = ": expected native memory, which the device can be sent, got a segment of the Java heap; take it"
                + " from an Arena or a HostBuffer, or call set and toFloats with an array";
        assertThrown(IllegalArgumentException.class, "source" + text, () -> tensor.copyFrom(stream, heap));
        assertThrown(IllegalArgumentException.class, "target" + text, () -> tensor.copyTo(stream, heap));
        try (HostBuffer buffer = HostBuffer.pinned(device, 12)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "target: expected memory that can be written, got read-only memory",
                    () -> tensor.copyTo(stream, buffer.segment().asReadOnly()));
        }
    }

    @Test
    void aBufferMustHoldTheTensor() {
        try (HostBuffer buffer = HostBuffer.pinned(device, 11)) {
            Tensor tensor = scope.tensor(DType.INT32, 3);
            assertThrown(
                    IllegalArgumentException.class,
                    "source: expected at least 12 bytes for INT32[3], got 11",
                    () -> tensor.copyFrom(stream, buffer));
            assertThrown(
                    IllegalArgumentException.class,
                    "target: expected at least 12 bytes for INT32[3], got 11",
                    () -> tensor.copyTo(stream, buffer));
        }
    }

    @Test
    void tensorsAreCopiedOnTheDevice() {
        Tensor source = scope.tensor(DType.BFLOAT16, 2, 3);
        Tensor target = scope.tensor(DType.BFLOAT16, 6);
        source.set(stream, 1f, 2, 3, 4, 5, Float.NaN);
        target.copyFrom(stream, source);
        assertArrayEquals(new float[] {1, 2, 3, 4, 5, Float.NaN}, target.toFloats(stream));
        target.zero(stream);
        assertArrayEquals(new float[6], target.toFloats(stream));
        assertThrown(
                IllegalArgumentException.class,
                "source: expected 6 elements of BFLOAT16, got 6 of FLOAT16",
                () -> target.copyFrom(stream, scope.tensor(DType.FLOAT16, 6)));
        assertThrown(
                IllegalArgumentException.class,
                "source: expected 6 elements of BFLOAT16, got 5 of BFLOAT16",
                () -> target.copyFrom(stream, scope.tensor(DType.BFLOAT16, 5)));
    }

    @Test
    void tensorsOfAnotherDeviceAreRefused() {
        assumeTrue(Device.count() >= 2, "skipped: this machine has one device");
        try (Device second = Device.open(1);
                Scope there = second.openScope()) {
            Tensor target = scope.tensor(DType.FLOAT32, 2);
            Tensor source = there.tensor(DType.FLOAT32, 2);
            assertThrown(
                    IllegalArgumentException.class,
                    "source: expected a tensor of device 0, got one of device 1",
                    () -> target.copyFrom(stream, source));
        }
    }

    @Test
    void aDimensionThatIsNotThereIsRefused() {
        Tensor tensor = scope.tensor(DType.FLOAT32, 2, 3);
        assertEquals(3, tensor.size(1));
        assertThrown(IndexOutOfBoundsException.class, "index: expected 0 to 1, got 2", () -> tensor.size(2));
        assertThrown(IndexOutOfBoundsException.class, "index: expected 0 to 1, got -1", () -> tensor.size(-1));
        assertTrue(tensor.isLive());
    }

    private static int[] bits(float[] values) {
        int[] bits = new int[values.length];
        for (int i = 0; i < values.length; i++) {
            bits[i] = Float.floatToRawIntBits(values[i]);
        }
        return bits;
    }
}
