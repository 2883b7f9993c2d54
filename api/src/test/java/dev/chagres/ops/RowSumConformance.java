package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code RowSum} against double precision. */
@Tag("L0")
@Tag("L1")
class RowSumConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(DType dtype, int rows, int columns) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (int[] size : new int[][] {{1, 1}, {2, 3}, {63, 65}, {64, 64}, {257, 8}, {1000, 129}, {1, 4096}}) {
                cases.add(new Case(dtype, size[0], size[1]));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void overwritingAndAdding(Case c) {
        RealMatrix x = open.normal(c.dtype, c.rows, c.columns, 1);
        double[] before = open.normal(DType.FLOAT32, c.columns, 1);
        double[] sums = new double[c.columns];
        double[] added = new double[c.columns];
        for (int column = 0; column < c.columns; column++) {
            for (double value : x.getColumn(column)) {
                sums[column] += value;
            }
            added[column] = before[column] + sums[column];
        }
        double magnitude = Math.sqrt(c.rows);
        Tensor sum = open.unwritten(DType.FLOAT32, c.columns);
        RowSum.rowSum(open.tensor(c.dtype, x), sum, Output.OVERWRITE, open.stream());
        open.assertClose("sum", sums, open.read(sum), magnitude, Tolerances.rounded(DType.FLOAT32));
        Tensor onTop = open.tensor(DType.FLOAT32, before, c.columns);
        RowSum.rowSum(open.tensor(c.dtype, x), onTop, Output.ADD, open.stream());
        open.assertClose("sum on top", added, open.read(onTop), magnitude, Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void withoutRowsOrColumns() {
        Tensor none = open.scope().tensor(DType.FLOAT32, 0, 3);
        Tensor sum = open.unwritten(DType.FLOAT32, 3);
        RowSum.rowSum(none, sum, Output.OVERWRITE, open.stream());
        assertArrayEquals(new float[3], open.read(sum));
        open.set(sum, 1, 2, 3);
        RowSum.rowSum(none, sum, Output.ADD, open.stream());
        assertArrayEquals(new float[] {1, 2, 3}, open.read(sum));
        RowSum.rowSum(
                open.scope().tensor(DType.FLOAT32, 3, 0),
                open.scope().tensor(DType.FLOAT32, 0),
                Output.ADD,
                open.stream());
        open.stream().synchronize();
    }

    @Test
    void refusals() {
        Tensor x = open.scope().tensor(DType.FLOAT32, 4, 3);
        refused(
                "x: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT32[4]",
                open.scope().tensor(DType.FLOAT32, 4),
                x);
        refused("sum: expected FLOAT32[3], got FLOAT32[4]", x, open.scope().tensor(DType.FLOAT32, 4));
        refused("sum: expected FLOAT32[3], got BFLOAT16[3]", x, open.scope().tensor(DType.BFLOAT16, 3));
        refused(
                "sum: expected memory of its own, got some of x's; it is written to while that is read or written",
                x,
                open.scope().view(x, 3, 3));
    }

    private static void refused(String text, Tensor x, Tensor sum) {
        assertThrown(IllegalArgumentException.class, text, () -> RowSum.rowSum(x, sum, Output.ADD, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 4, 8, 1));
        Tensor sum = open.unwritten(DType.FLOAT32, 8);
        Allocation.assertNone("row sum", () -> RowSum.rowSum(x, sum, Output.OVERWRITE, open.stream()));
    }
}
