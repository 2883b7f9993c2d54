package dev.chagres;

import java.lang.foreign.ValueLayout;
import java.util.Set;

/**
 * Checks that a tensor has the elements that a copy from or to a Java array is for.
 *
 * <p>Threading: the device's thread.
 */
final class ElementChecks {
    /** What a Java array has that is copied as it is. */
    enum ArrayElements {
        SHORTS(ValueLayout.JAVA_SHORT, "INT16", DType.INT16),
        INTS(ValueLayout.JAVA_INT, "INT32 or UINT32", DType.INT32, DType.UINT32),
        LONGS(ValueLayout.JAVA_LONG, "INT64 or UINT64", DType.INT64, DType.UINT64),
        DOUBLES(ValueLayout.JAVA_DOUBLE, "FLOAT64", DType.FLOAT64),
        BYTES(
                ValueLayout.JAVA_BYTE,
                "elements of BYTE, INT8, FLOAT8_E4M3 or FLOAT8_E5M2",
                DType.BYTE,
                DType.INT8,
                DType.FLOAT8_E4M3,
                DType.FLOAT8_E5M2);

        final ValueLayout layout;
        private final String expected;
        private final Set<DType> types;

        ArrayElements(ValueLayout layout, String expected, DType... types) {
            this.layout = layout;
            this.expected = expected;
            this.types = Set.of(types);
        }

        /** Checks that a tensor has such elements. */
        void ensureIn(Tensor tensor) {
            if (!types.contains(tensor.dtype())) {
                throw other(tensor, expected);
            }
        }
    }

    private ElementChecks() {}

    static void ensureFloats(Tensor tensor) {
        if (!tensor.dtype().isFloat()) {
            throw new IllegalArgumentException("tensor: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got "
                    + tensor.dtype()
                    + tensor.shape()
                    + (tensor.dtype().isFloat8()
                            ? ", which stand for numbers only with a scale; Cast.quantize and Cast.dequantize convert, byte"
                                    + " values and toBytes copy"
                            : "; " + copiesOf(tensor.dtype()) + " for it"));
        }
    }

    private static IllegalArgumentException other(Tensor tensor, String expected) {
        return new IllegalArgumentException("tensor: expected " + expected + ", got " + tensor.dtype() + tensor.shape()
                + "; " + copiesOf(tensor.dtype()) + " for it");
    }

    /** Says which copies there are for elements of {@code dtype}. */
    private static String copiesOf(DType dtype) {
        return switch (dtype) {
            case FLOAT32, FLOAT16, BFLOAT16 -> "float values (1f, 2f) and toFloats are";
            case INT16 -> "short values ((short) 1, (short) 2) and toShorts are";
            case INT32, UINT32 -> "int values (1, 2) and toInts are";
            case INT64, UINT64 -> "long values (1L, 2L) and toLongs are";
            case FLOAT64 -> "double values (1.0, 2.0) and toDoubles are";
            case BYTE, INT8, FLOAT8_E4M3, FLOAT8_E5M2 -> "byte values ((byte) 1, (byte) 2) and toBytes are";
        };
    }

    /** Throws for contents that were checked once and are trusted since. */
    static void ensureWritable(Tensor tensor) {
        if (tensor.isFixed()) {
            throw new IllegalArgumentException("tensor: expected one whose elements may change, got the offsets of a"
                    + " CuSeqlens or the angles of a RotaryEmbedding, which are trusted once made; make another one");
        }
        if (tensor.isShared()) {
            throw new IllegalArgumentException(
                    "tensor: expected one whose elements may change, got a weight that threads"
                            + " share, which nobody may write to until its SharedWeights and all that they lend to are closed");
        }
    }

    static void ensureCount(Tensor tensor, int count) {
        if (count != tensor.count()) {
            throw new IllegalArgumentException("values: expected " + tensor.count() + " for " + tensor.dtype()
                    + tensor.shape() + ", got " + count);
        }
    }
}
