package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import java.util.Arrays;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** {@code HadamardTransform} against products with the matrix in double precision, and what it refuses. */
@Tag("L0")
@Tag("L1")
class HadamardTransformConformance {
    private static final int[][] SIZES = {{16, 16}, {16, 80}, {64, 64}, {80, 48}, {272, 1040}};
    private static final int SIZE = HadamardTransform.SIZE;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** The matrix by its recursion: of twice the size, four of the half, the last one negated; a quarter each. */
    private static RealMatrix matrix(int randomSignMask) {
        RealMatrix matrix = new BlockRealMatrix(new double[][] {{0.25}});
        while (matrix.getRowDimension() < SIZE) {
            int half = matrix.getRowDimension();
            RealMatrix doubled = new BlockRealMatrix(2 * half, 2 * half);
            doubled.setSubMatrix(matrix.getData(), 0, 0);
            doubled.setSubMatrix(matrix.getData(), 0, half);
            doubled.setSubMatrix(matrix.getData(), half, 0);
            doubled.setSubMatrix(matrix.scalarMultiply(-1).getData(), half, half);
            matrix = doubled;
        }
        RealMatrix signs = MatrixUtils.createRealIdentityMatrix(SIZE);
        for (int i = 0; i < SIZE; i++) {
            signs.setEntry(i, i, (randomSignMask >> i & 1) == 0 ? 1 : -1);
        }
        return signs.multiply(matrix);
    }

    private static RealMatrix transformed(RealMatrix x, int randomSignMask) {
        RealMatrix matrix = matrix(randomSignMask);
        RealMatrix y = new BlockRealMatrix(x.getColumnDimension(), x.getRowDimension());
        for (int row = 0; row < x.getRowDimension(); row += SIZE) {
            RealMatrix rows = x.getSubMatrix(row, row + SIZE - 1, 0, x.getColumnDimension() - 1);
            y.setSubMatrix(rows.transpose().multiply(matrix).getData(), 0, row);
        }
        return y;
    }

    @Test
    void sums() {
        for (int[] size : SIZES) {
            for (int mask : new int[] {0, 1, 0x8000, 0xffff, 0x5a3c}) {
                RealMatrix x = open.normal(DType.BFLOAT16, size[0], size[1], 1);
                Tensor y = open.unwritten(DType.BFLOAT16, size[1], size[0]);
                HadamardTransform.hadamardTransform(open.tensor(DType.BFLOAT16, x), y, mask, open.stream());
                open.assertClose("sums", transformed(x, mask), y, Tolerances.rounded(DType.BFLOAT16));
            }
        }
    }

    /** What the class is for: a product that sums over rows does not notice that both operands were transformed. */
    @Test
    void productsStay() {
        RealMatrix x = open.normal(DType.BFLOAT16, 64, 32, 1);
        RealMatrix y = open.normal(DType.BFLOAT16, 64, 48, 1);
        Tensor tx = open.unwritten(DType.BFLOAT16, 32, 64);
        Tensor ty = open.unwritten(DType.BFLOAT16, 48, 64);
        HadamardTransform.hadamardTransform(open.tensor(DType.BFLOAT16, x), tx, 0x1234, open.stream());
        HadamardTransform.hadamardTransform(open.tensor(DType.BFLOAT16, y), ty, 0x1234, open.stream());
        Tensor product = open.unwritten(DType.FLOAT32, 32, 48);
        Gemm.gemm(tx, Gemm.Transpose.NO, ty, Gemm.Transpose.YES, product, Output.OVERWRITE, open.stream());
        open.assertClose("product", x.transpose().multiply(y), product, Tolerances.layer(DType.BFLOAT16));
    }

    @Test
    void noElementsNoGarbageAndAGraph() {
        HadamardTransform.hadamardTransform(of(DType.BFLOAT16, 0, 32), of(DType.BFLOAT16, 32, 0), 1, open.stream());
        Tensor x = of(DType.BFLOAT16, 16, 16);
        Tensor y = open.unwritten(DType.BFLOAT16, 16, 16);
        x.zero(open.stream());
        Allocation.assertNone("hadamardTransform", () -> HadamardTransform.hadamardTransform(x, y, 1, open.stream()));
        try (Graph graph = open.stream().capture(() -> HadamardTransform.hadamardTransform(x, y, 1, open.stream()))) {
            double[] ones = new double[256];
            Arrays.fill(ones, 1);
            open.set(x, ones);
            graph.launch();
            // All ones, the first negated: 16/4 - 2/4 of the sum, -2/4 of every other.
            assertEquals(3.5f, open.read(y)[0]);
            assertEquals(-0.5f, open.read(y)[1]);
        }
    }

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static void refused(String text, Tensor input, Tensor output, int mask) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> HadamardTransform.hadamardTransform(input, output, mask, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = of(DType.BFLOAT16, 32, 48);
        Tensor y = of(DType.BFLOAT16, 48, 32);
        String sizes =
                "input: expected a matrix of BFLOAT16 whose sizes are multiples of 16, of at most 4194240 rows, got ";
        refused(sizes + "FLOAT16[32, 48]", of(DType.FLOAT16, 32, 48), y, 0);
        refused(sizes + "BFLOAT16[24, 48]", of(DType.BFLOAT16, 24, 48), y, 0);
        refused(sizes + "BFLOAT16[32, 40]", of(DType.BFLOAT16, 32, 40), y, 0);
        refused(sizes + "BFLOAT16[256]", of(DType.BFLOAT16, 256), y, 0);
        refused(sizes + "BFLOAT16[4194256, 0]", of(DType.BFLOAT16, 4_194_256, 0), of(DType.BFLOAT16, 0, 4_194_256), 0);
        refused("output: expected BFLOAT16[48, 32], got BFLOAT16[32, 32]", x, of(DType.BFLOAT16, 32, 32), 0);
        refused("output: expected BFLOAT16[T, 32], got BFLOAT16[32, 48]", x, of(DType.BFLOAT16, 32, 48), 0);
        refused("randomSignMask: expected 16 bits, 0 to 65535, got 65536", x, y, 0x10000);
        refused("randomSignMask: expected 16 bits, 0 to 65535, got -1", x, y, -1);
        Tensor room = of(DType.BFLOAT16, 48 * 32 + 16);
        refused(
                "output: expected memory that begins at a multiple of 32 bytes, as every tensor of a scope does, got a view"
                        + " that does not; copy it from a tensor",
                x,
                open.scope().view(room, 8, 48, 32),
                0);
        refused(
                "input: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view"
                        + " that does not; copy it into a tensor",
                open.scope().view(room, 4, 32, 48),
                y,
                0);
        Tensor square = of(DType.BFLOAT16, 32, 32);
        refused(
                "output: expected memory of its own, got some of input's; it is written to while that is read or written",
                square,
                square,
                0);
    }
}
