package dev.chagres;

/**
 * Element type of a tensor.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTEDType} in TE's {@code transformer_engine.h}.
 */
public enum DType {
    /** Unsigned 8-bit integers; also raw bytes and bit masks. */
    BYTE(0, 1),
    /** Signed 32-bit integers: token identifiers, labels, cumulative lengths. */
    INT32(2, 4),
    /** Signed 64-bit integers: random-number state. */
    INT64(3, 8),
    /** IEEE 754 binary32. */
    FLOAT32(4, 4),
    /** IEEE 754 binary16. */
    FLOAT16(5, 2),
    /** bfloat16: the upper half of binary32. */
    BFLOAT16(6, 2);

    private final int code;
    private final int byteSize;

    DType(int code, int byteSize) {
        this.code = code;
        this.byteSize = byteSize;
    }

    /** Returns TE's number for this type. */
    public int code() {
        return code;
    }

    /** Returns the bytes of one element. */
    public int byteSize() {
        return byteSize;
    }

    /** Returns whether elements are floating-point numbers. */
    public boolean isFloat() {
        return this == FLOAT32 || this == FLOAT16 || this == BFLOAT16;
    }

    /** Returns {@code value} rounded to nearest even in BFLOAT16, as its 16 bits; NaN stays NaN. */
    public static short toBfloat16(float value) {
        int bits = Float.floatToRawIntBits(value);
        if (Float.isNaN(value)) {
            return (short) ((bits >>> 16) | 0x40);
        }
        return (short) ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
    }
}
