package dev.chagres.cudnn;

import dev.chagres.DType;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.Checks;

/**
 * Types of elements, and of the arithmetic of an operation.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code cudnnDataType_t} of {@code cudnn_graph.h}.
 */
public enum DataType {
    /** IEEE 754 binary32. */
    FLOAT(Cudnn.CUDNN_DATA_FLOAT(), DType.FLOAT32),
    /** IEEE 754 binary64. */
    DOUBLE(Cudnn.CUDNN_DATA_DOUBLE(), DType.FLOAT64),
    /** IEEE 754 binary16. */
    HALF(Cudnn.CUDNN_DATA_HALF(), DType.FLOAT16),
    /** The upper half of binary32. */
    BFLOAT16(Cudnn.CUDNN_DATA_BFLOAT16(), DType.BFLOAT16),
    /** Signed 8-bit integers. */
    INT8(Cudnn.CUDNN_DATA_INT8(), DType.INT8),
    /** Unsigned 8-bit integers. */
    UINT8(Cudnn.CUDNN_DATA_UINT8(), DType.BYTE),
    /** Signed 32-bit integers. */
    INT32(Cudnn.CUDNN_DATA_INT32(), DType.INT32),
    /** Signed 64-bit integers. */
    INT64(Cudnn.CUDNN_DATA_INT64(), DType.INT64),
    /** Truth values, a byte each: what comparisons give. In memory they are tensors of {@link DType#BYTE}. */
    BOOLEAN(Cudnn.CUDNN_DATA_BOOLEAN(), DType.BYTE),
    /** 8-bit floating point with 4 bits of exponent. */
    FP8_E4M3(Cudnn.CUDNN_DATA_FP8_E4M3(), DType.FLOAT8_E4M3),
    /** 8-bit floating point with 5 bits of exponent. */
    FP8_E5M2(Cudnn.CUDNN_DATA_FP8_E5M2(), DType.FLOAT8_E5M2),
    /** Powers of two from 2^-127 to 2^127, for scales of blocks. In memory they are tensors of {@link DType#BYTE}. */
    FP8_E8M0(Cudnn.CUDNN_DATA_FP8_E8M0(), DType.BYTE);

    private final int code;
    private final DType dtype;

    DataType(int code, DType dtype) {
        this.code = code;
        this.dtype = dtype;
    }

    /**
     * Returns cuDNN's type of the elements of a tensor; {@link DType#BYTE} is {@link #UINT8}.
     *
     * @throws IllegalArgumentException when cuDNN's graphs have no such type
     */
    public static DataType of(DType dtype) {
        Checks.given("dtype", dtype);
        for (DataType type : values()) {
            if (type.dtype == dtype) {
                return type;
            }
        }
        throw new IllegalArgumentException("dtype: expected one that cuDNN's graphs have, got " + dtype);
    }

    /** Returns the type of the tensors whose elements are of this type. */
    public DType dtype() {
        return dtype;
    }

    int code() {
        return code;
    }
}
