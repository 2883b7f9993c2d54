package dev.chagres;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import dev.chagres.bindings.te.TransformerEngine;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Shapes and element types. */
@Tag("L0")
class ShapeTest {
    @Test
    void hasSizesAndCount() {
        Shape shape = Shape.of(2, 3, 5);
        assertEquals(3, shape.rank());
        assertEquals(5, shape.size(2));
        assertEquals(30, shape.count());
        assertEquals(1, Shape.of().count());
        assertEquals(0, Shape.of(7, 0).count());
        assertEquals("[2, 3, 5]", shape.toString());
    }

    @Test
    void isEqualByItsSizesAndCannotBeChanged() {
        long[] sizes = {2, 3};
        Shape shape = new Shape(sizes);
        sizes[0] = 9;
        shape.sizes()[1] = 9;
        assertArrayEquals(new long[] {2, 3}, shape.sizes());
        assertEquals(Shape.of(2, 3), shape);
        assertEquals(Shape.of(2, 3).hashCode(), shape.hashCode());
        assertNotEquals(Shape.of(3, 2), shape);
        assertNotEquals(Shape.of(2, 3, 1), shape);
    }

    @Test
    void refusesWhatNoTensorHas() {
        assertThrown(
                IllegalArgumentException.class,
                "sizes: expected at most 4 dimensions, got [1, 2, 3, 4, 5]",
                () -> Shape.of(1, 2, 3, 4, 5));
        assertThrown(
                IllegalArgumentException.class, "sizes: expected no negative size, got [1, -2]", () -> Shape.of(1, -2));
        Shape huge = Shape.of(1L << 40, 1L << 40);
        assertThrows(ArithmeticException.class, huge::count);
    }

    @Test
    void typesHaveTheNumbersOfTransformerEngine() {
        assertEquals(TransformerEngine.kNVTEByte(), DType.BYTE.code());
        assertEquals(TransformerEngine.kNVTEInt16(), DType.INT16.code());
        assertEquals(TransformerEngine.kNVTEInt32(), DType.INT32.code());
        assertEquals(TransformerEngine.kNVTEInt64(), DType.INT64.code());
        assertEquals(TransformerEngine.kNVTEFloat32(), DType.FLOAT32.code());
        assertEquals(TransformerEngine.kNVTEFloat16(), DType.FLOAT16.code());
        assertEquals(TransformerEngine.kNVTEBFloat16(), DType.BFLOAT16.code());
        assertEquals(TransformerEngine.kNVTEFloat8E4M3(), DType.FLOAT8_E4M3.code());
        assertEquals(TransformerEngine.kNVTEFloat8E5M2(), DType.FLOAT8_E5M2.code());
        for (DType dtype : DType.values()) {
            int expected = switch (dtype) {
                case BYTE, INT8, FLOAT8_E4M3, FLOAT8_E5M2 -> 1;
                case INT16, FLOAT16, BFLOAT16 -> 2;
                case INT32, UINT32, FLOAT32 -> 4;
                case INT64, UINT64, FLOAT64 -> 8;
            };
            assertEquals(expected, dtype.byteSize());
        }
    }
}
