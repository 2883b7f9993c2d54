package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code Columns} against loops. */
@Tag("L0")
@Tag("L1")
class ColumnsConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static float[] counted(int count, int first) {
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] = (first + i) % 251; // exact in BFLOAT16
        }
        return values;
    }

    @ParameterizedTest
    @CsvSource({
        "FLOAT32, 1, 1, 0, 1, 0, 1",
        "FLOAT32, 7, 5, 2, 9, 4, 3",
        "BFLOAT16, 64, 129, 0, 31, 1, 30",
        "BFLOAT16, 3, 8, 0, 8, 0, 8",
        "FLOAT16, 100, 33, 31, 2, 0, 2",
        "FLOAT32, 4, 3, 3, 2, 2, 0",
        "FLOAT32, 0, 3, 1, 2, 0, 2"
    })
    void copiesTheseAndLeavesOthers(DType dtype, int rows, int from, int xColumn, int to, int yColumn, int count) {
        float[] x = counted(rows * from, 1);
        float[] expected = counted(rows * to, 100);
        Tensor source = open.scope().tensor(dtype, rows, from);
        Tensor target = open.scope().tensor(dtype, rows, to);
        source.set(open.stream(), x);
        target.set(open.stream(), expected);
        for (int row = 0; row < rows; row++) {
            System.arraycopy(x, row * from + xColumn, expected, row * to + yColumn, count);
        }
        Columns.copyColumns(source, xColumn, target, yColumn, count, open.stream());
        assertArrayEquals(expected, open.read(target));
    }

    @Test
    void refusals() {
        Tensor x = open.scope().tensor(DType.FLOAT32, 4, 3);
        Tensor y = open.scope().tensor(DType.FLOAT32, 4, 5);
        refused("x: expected a matrix, got FLOAT32[4]", open.scope().tensor(DType.FLOAT32, 4), 0, y, 0, 1);
        String wrong = "y: expected a matrix of FLOAT32 with 4 rows, as x has, got ";
        refused(wrong + "FLOAT32[3, 5]", x, 0, open.scope().tensor(DType.FLOAT32, 3, 5), 0, 1);
        refused(wrong + "FLOAT16[4, 5]", x, 0, open.scope().tensor(DType.FLOAT16, 4, 5), 0, 1);
        refused(wrong + "FLOAT32[20]", x, 0, open.scope().tensor(DType.FLOAT32, 20), 0, 1);
        String columns = "Column, count: expected columns of ";
        refused("x" + columns + "x, FLOAT32[4, 3], got 3 from column 1 on", x, 1, y, 0, 3);
        refused("x" + columns + "x, FLOAT32[4, 3], got 1 from column -1 on", x, -1, y, 0, 1);
        refused("x" + columns + "x, FLOAT32[4, 3], got -1 from column 1 on", x, 1, y, 0, -1);
        refused("y" + columns + "y, FLOAT32[4, 5], got 3 from column 3 on", x, 0, y, 3, 3);
        refused(
                "y: expected memory of its own, got some of x's; it is written to while that is read or written",
                x,
                0,
                x,
                1,
                1);
    }

    private static void refused(String text, Tensor x, long xColumn, Tensor y, long yColumn, long count) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Columns.copyColumns(x, xColumn, y, yColumn, count, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.scope().tensor(DType.BFLOAT16, 16, 8);
        x.zero(open.stream());
        Tensor y = open.unwritten(DType.BFLOAT16, 16, 4);
        Allocation.assertNone("columns", () -> Columns.copyColumns(x, 4, y, 0, 4, open.stream()));
    }
}
