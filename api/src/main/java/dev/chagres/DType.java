package dev.chagres;

import dev.chagres.internal.memory.HostMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Element type of a tensor.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTEDType} in TE's {@code transformer_engine.h}; {@code ncclDataType_t} of {@code nccl.h} for those that TE lacks.
 */
public enum DType {
    /** Unsigned 8-bit integers; also raw bytes and bit masks. */
    BYTE(0, 1),
    /** Signed 16-bit integers: the lower halves of FP32 weights, whose upper halves are BFLOAT16. NCCL does not move them. */
    INT16(1, 2),
    /** Signed 32-bit integers: token identifiers, labels, cumulative lengths. */
    INT32(2, 4),
    /** Signed 64-bit integers: random-number state. */
    INT64(3, 8),
    /** IEEE 754 binary32. */
    FLOAT32(4, 4),
    /** IEEE 754 binary16. */
    FLOAT16(5, 2),
    /** bfloat16: the upper half of binary32. */
    BFLOAT16(6, 2),
    /**
     * 8-bit floating point: 4 bits of exponent, 3 of mantissa, up to 448, no infinities. A plain tensor of this type holds only the bytes;
     * their values follow from a scale, which a {@link QuantizedTensor} holds together with them.
     */
    FLOAT8_E4M3(7, 1),
    /** 8-bit floating point: 5 bits of exponent, 2 of mantissa, up to 57344. Like {@link #FLOAT8_E4M3} it needs a scale. */
    FLOAT8_E5M2(8, 1),
    /** Signed 8-bit integers. Only copies and collectives take this type and the types below. */
    INT8(DType.NONE, 1),
    /** Unsigned 32-bit integers. */
    UINT32(DType.NONE, 4),
    /** Unsigned 64-bit integers. */
    UINT64(DType.NONE, 8),
    /** IEEE 754 binary64. */
    FLOAT64(DType.NONE, 8);

    /** The code of types that Transformer Engine does not have. */
    private static final int NONE = -1;

    /** Elements of 16 bits that are converted in an array, which is faster than in memory, at a time. */
    private static final int AT_A_TIME = 1 << 12;

    private final int code;
    private final int byteSize;

    DType(int code, int byteSize) {
        this.code = code;
        this.byteSize = byteSize;
    }

    /**
     * Returns TE's number for this type, which our own operations use, too.
     *
     * @throws IllegalArgumentException when it has none: only copies and collectives take such elements
     */
    public int code() {
        if (!hasCode()) {
            throw new IllegalArgumentException(
                    "dtype: expected one that Transformer Engine and our operations have, got " + this
                            + ", which only copies and collectives take");
        }
        return code;
    }

    /** Returns whether TE and our own operations have a number for this type: false for types that only copies and collectives take. */
    public boolean hasCode() {
        return code != NONE;
    }

    /** Returns the bytes of one element. */
    public int byteSize() {
        return byteSize;
    }

    /** Returns whether elements are floating-point numbers that need no scale: those of 32 and 16 bits. */
    public boolean isFloat() {
        return this == FLOAT32 || this == FLOAT16 || this == BFLOAT16;
    }

    /** Returns whether elements are floating-point numbers of 8 bits, which need a scale. */
    public boolean isFloat8() {
        return this == FLOAT8_E4M3 || this == FLOAT8_E5M2;
    }

    /** Returns {@code value} rounded to nearest even in BFLOAT16, as its 16 bits; NaN stays NaN. */
    public static short toBfloat16(float value) {
        int bits = Float.floatToRawIntBits(value);
        if (Float.isNaN(value)) {
            return (short) ((bits >>> 16) | 0x40);
        }
        return (short) ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
    }

    /**
     * Converts floats to elements in the host's memory: {@code target[index + i] = values[first + i]}, rounded to nearest even in this type;
     * what is too large becomes infinity, NaN stays NaN.
     *
     * @param values floats
     * @param first the first of them that is converted
     * @param target host memory of elements of this type, one behind the other, at any address
     * @param index the first element that is written
     * @param count how many are converted
     * @throws IllegalArgumentException when this type has no floating-point numbers, see {@link #isFloat}, or {@code target} cannot be written
     * @throws IllegalStateException when {@code target} is closed
     * @throws IndexOutOfBoundsException when there are not so many floats or elements
     */
    public void fromFloats(float[] values, int first, MemorySegment target, long index, int count) {
        Given.given("values", values);
        HostMemory.ensureOpen("target", Given.given("target", target));
        HostMemory.ensureWritable("target", target);
        ensureWithin("values", first, count, values.length);
        ensureElements("target", target, index, count);
        if (this == FLOAT32) {
            MemorySegment.copy(values, first, target, ValueLayout.JAVA_FLOAT_UNALIGNED, index * Float.BYTES, count);
            return;
        }
        short[] bits = new short[Math.min(count, AT_A_TIME)];
        for (int done = 0; done < count; ) {
            int numbers = Math.min(count - done, AT_A_TIME);
            for (int i = 0; i < numbers; i++) {
                float value = values[first + done + i];
                bits[i] = this == BFLOAT16 ? toBfloat16(value) : Float.floatToFloat16(value);
            }
            MemorySegment.copy(
                    bits, 0, target, ValueLayout.JAVA_SHORT_UNALIGNED, (index + done) * Short.BYTES, numbers);
            done += numbers;
        }
    }

    /**
     * Converts elements in the host's memory to floats: {@code values[first + i] = source[index + i]}, which is exact.
     *
     * @param source host memory of elements of this type, one behind the other, at any address
     * @param index the first element that is read
     * @param values takes the floats
     * @param first the first of them that is written
     * @param count how many are converted
     * @throws IllegalArgumentException when this type has no floating-point numbers, see {@link #isFloat}
     * @throws IllegalStateException when {@code source} is closed
     * @throws IndexOutOfBoundsException when there are not so many elements or floats
     */
    public void toFloats(MemorySegment source, long index, float[] values, int first, int count) {
        HostMemory.ensureOpen("source", Given.given("source", source));
        Given.given("values", values);
        ensureWithin("values", first, count, values.length);
        ensureElements("source", source, index, count);
        if (this == FLOAT32) {
            MemorySegment.copy(source, ValueLayout.JAVA_FLOAT_UNALIGNED, index * Float.BYTES, values, first, count);
            return;
        }
        short[] bits = new short[Math.min(count, AT_A_TIME)];
        for (int done = 0; done < count; ) {
            int numbers = Math.min(count - done, AT_A_TIME);
            MemorySegment.copy(
                    source, ValueLayout.JAVA_SHORT_UNALIGNED, (index + done) * Short.BYTES, bits, 0, numbers);
            for (int i = 0; i < numbers; i++) {
                values[first + done + i] =
                        this == BFLOAT16 ? Float.intBitsToFloat(bits[i] << Short.SIZE) : Float.float16ToFloat(bits[i]);
            }
            done += numbers;
        }
    }

    private void ensureElements(String argument, MemorySegment memory, long index, int count) {
        if (!isFloat()) {
            throw new IllegalArgumentException("dtype: expected FLOAT32, FLOAT16 or BFLOAT16, got " + this);
        }
        ensureWithin(argument, index, count, memory.byteSize() / byteSize);
    }

    private static void ensureWithin(String argument, long first, int count, long present) {
        if (first < 0 || count < 0 || first > present - count) {
            throw new IndexOutOfBoundsException(argument + ": expected " + count + " elements within " + present
                    + ", got " + first + " as the first");
        }
    }
}
