package dev.chagres.io;

import dev.chagres.DType;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Element types of the safetensors format, by their names in files. Those that have a {@link DType} can become tensors; of the others only
 * type and size can be read.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the {@code Dtype} of the Rust library safetensors 0.8.
 */
public enum SafetensorsType {
    /** True or false, a byte each. */
    BOOL(8, null),
    /** 4-bit floating point, two elements a byte. */
    F4(4, null),
    /** 6-bit floating point, 2 bits of exponent, 3 of mantissa, four elements in three bytes. */
    F6_E2M3(6, null),
    /** 6-bit floating point, 3 bits of exponent, 2 of mantissa, four elements in three bytes. */
    F6_E3M2(6, null),
    /** Unsigned 8-bit integers. */
    U8(8, DType.BYTE),
    /** Signed 8-bit integers. */
    I8(8, DType.INT8),
    /** 8-bit floating point, 5 bits of exponent, 2 of mantissa. */
    F8_E5M2(8, null),
    /** 8-bit floating point, 4 bits of exponent, 3 of mantissa. */
    F8_E4M3(8, null),
    /** 8-bit scales, powers of two. */
    F8_E8M0(8, null),
    /** AMD's variant of {@link #F8_E4M3}: no infinities, no negative zero, another bias of the exponent. */
    F8_E4M3FNUZ(8, null),
    /** AMD's variant of {@link #F8_E5M2}: no infinities, no negative zero, another bias of the exponent. */
    F8_E5M2FNUZ(8, null),
    /** Signed 16-bit integers. */
    I16(16, DType.INT16),
    /** Unsigned 16-bit integers. */
    U16(16, null),
    /** IEEE 754 binary16. */
    F16(16, DType.FLOAT16),
    /** bfloat16. */
    BF16(16, DType.BFLOAT16),
    /** Signed 32-bit integers. */
    I32(32, DType.INT32),
    /** Unsigned 32-bit integers. */
    U32(32, DType.UINT32),
    /** IEEE 754 binary32. */
    F32(32, DType.FLOAT32),
    /** Complex numbers, two binary32 each. */
    C64(64, null),
    /** IEEE 754 binary64. */
    F64(64, DType.FLOAT64),
    /** Signed 64-bit integers. */
    I64(64, DType.INT64),
    /** Unsigned 64-bit integers. */
    U64(64, DType.UINT64);

    private static final Map<DType, SafetensorsType> OF_DTYPES = new EnumMap<>(DType.class);

    static {
        for (SafetensorsType type : values()) {
            if (type.dtype != null) {
                OF_DTYPES.put(type.dtype, type);
            }
        }
    }

    private final int bitSize;
    private final @Nullable DType dtype;

    SafetensorsType(int bitSize, @Nullable DType dtype) {
        this.bitSize = bitSize;
        this.dtype = dtype;
    }

    /** Returns the bits of one element. */
    public int bitSize() {
        return bitSize;
    }

    /** Returns the type of tensors that hold such elements; empty when there is none. */
    public Optional<DType> dtype() {
        return Optional.ofNullable(dtype);
    }

    /**
     * Returns the format's type for elements of {@code dtype}.
     *
     * @throws IllegalArgumentException when the format has none
     */
    public static SafetensorsType of(DType dtype) {
        SafetensorsType type = OF_DTYPES.get(dtype);
        if (type == null) {
            throw new IllegalArgumentException("dtype: expected one that the safetensors format has, got " + dtype);
        }
        return type;
    }

    /** Returns the type of this name in files; empty when there is none. */
    static Optional<SafetensorsType> named(String name) {
        return Arrays.stream(values()).filter(type -> type.name().equals(name)).findFirst();
    }

    /**
     * Returns the bytes of a tensor of these sizes: the product of all, times the bits of an element, over 8.
     *
     * @throws ArithmeticException when no long can hold the number of bits, or elements of less than a byte do not fill whole bytes
     */
    long byteSize(long... sizes) {
        long bits = bitSize;
        for (long size : sizes) {
            if (Math.multiplyHigh(bits, size) != bits * size >> Long.SIZE - 1) {
                // Math.multiplyExact throws without a text once it is compiled.
                throw new ArithmeticException("long overflow");
            }
            bits *= size;
        }
        if (bits % 8 != 0) {
            throw new ArithmeticException("expected whole bytes, got " + bits + " bits");
        }
        return bits / 8;
    }
}
