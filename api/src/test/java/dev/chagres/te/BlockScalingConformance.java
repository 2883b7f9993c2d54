package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.QuantizationConfig.Scales;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.Rounding;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Cast.quantize} and {@code Gemm} with a scale a block: every byte and scale must be the one, products are close. */
@Tag("L0")
@Tag("L1")
class BlockScalingConformance {
    private static final List<Scaling> BLOCKS = List.of(Scaling.BLOCK_1D, Scaling.BLOCK_2D);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** A matrix of {@code input}, quantized by blocks to {@code output}. */
    record Case(Scaling scaling, DType input, DType output, QuantizationConfig config, int rows, int columns) {}

    static List<Case> cases() {
        QuantizationConfig powers = QuantizationConfig.standard().withScales(Scales.POWER_OF_2);
        List<Case> cases = new ArrayList<>();
        for (Scaling scaling : BLOCKS) {
            for (DType input : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                for (int[] size : new int[][] {{16, 16}, {128, 128}, {64, 144}, {144, 272}, {256, 128}}) {
                    cases.add(new Case(scaling, input, DType.FLOAT8_E4M3, powers, size[0], size[1]));
                    cases.add(new Case(
                            scaling, input, DType.FLOAT8_E5M2, QuantizationConfig.standard(), size[0], size[1]));
                }
                cases.add(new Case(scaling, input, DType.FLOAT8_E4M3, powers.withAmaxEpsilon(2), 144, 144));
            }
        }
        return cases;
    }

    /** Numbers of very different blocks, one of them of zeros. */
    private static RealMatrix drawn(Case c) {
        RealMatrix x = open.normal(c.input, c.rows, c.columns, 1);
        for (int row = 0; row < c.rows; row++) {
            for (int column = 0; column < c.columns; column++) {
                double factor = row / 128 + column / 128 == 0 ? 1 : Math.scalb(1, -3 * (row / 128 + column / 128));
                x.setEntry(row, column, row == 5 && column < 128 ? 0 : factor * x.getEntry(row, column));
            }
        }
        return Rounding.round(x, c.input);
    }

    private static float scaleOf(float amax, Case c) {
        float used = Math.max(amax, c.config.amaxEpsilon());
        if (used == 0) {
            return 1;
        }
        float scale = (float) Float8Witness.largest(c.output) / used;
        return c.config.scales() == Scales.POWER_OF_2 ? Math.scalb(1f, Math.getExponent(scale)) : scale;
    }

    /** Checks a copy: data and scale inverse of {@code x}, which is the matrix or its transpose. */
    private static void assertCopy(Case c, RealMatrix x, Tensor data, Tensor scaleInverse) {
        int rows = x.getRowDimension();
        int columns = x.getColumnDimension();
        int blockRows = c.scaling == Scaling.BLOCK_1D ? 1 : 128;
        double[] stored = Float8Witness.values(data.toBytes(open.stream()), c.output);
        float[] inverses = open.read(scaleInverse);
        int stride = (int) scaleInverse.size(1);
        for (int top = 0; top < rows; top += blockRows) {
            for (int left = 0; left < columns; left += 128) {
                int bottom = Math.min(rows, top + blockRows);
                int right = Math.min(columns, left + 128);
                RealMatrix block = x.getSubMatrix(top, bottom - 1, left, right - 1);
                double[] entries = Comparison.entries(block);
                float amax = (float) Arrays.stream(entries).map(Math::abs).max().orElse(0);
                float scale = scaleOf(amax, c);
                int place = c.scaling == Scaling.BLOCK_1D ? left / 128 * stride + top : top / 128 * stride + left / 128;
                assertEquals(1 / scale, inverses[place], "scale inverse of the block at " + top + ", " + left);
                for (int row = top; row < bottom; row++) {
                    for (int column = left; column < right; column++) {
                        double expected = Float8Witness.quantized(x.getEntry(row, column), scale, c.output);
                        assertEquals(expected, stored[row * columns + column], row + ", " + column);
                    }
                }
            }
        }
    }

    private static QuantizedTensor empty(Case c) {
        return open.scope().quantized(c.scaling, c.output, c.rows, c.columns);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void quantize(Case c) {
        RealMatrix values = drawn(c);
        Tensor x = open.tensor(c.input, values);
        QuantizedTensor rowwise = empty(c).allocateRowwise(open.scope());
        QuantizedTensor both = empty(c).allocateRowwise(open.scope()).allocateColumnwise(open.scope());
        Cast.quantize(x, rowwise, c.config, open.stream());
        Cast.quantize(x, both, c.config, open.stream());
        assertCopy(c, values, rowwise.rowwise(), rowwise.rowwiseScaleInverse());
        assertCopy(c, values, both.rowwise(), both.rowwiseScaleInverse());
        assertCopy(c, values.transpose(), both.columnwise(), both.columnwiseScaleInverse());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void quantizeColumnwiseAlone(Case c) {
        RealMatrix values = drawn(c);
        QuantizedTensor columnwise = empty(c).allocateColumnwise(open.scope());
        Cast.quantize(open.tensor(c.input, values), columnwise, c.config, open.stream());
        assertCopy(c, values.transpose(), columnwise.columnwise(), columnwise.columnwiseScaleInverse());
    }

    /** A magnitude so small that FP32 cannot hold the scale, which is then the largest number of the input's type. */
    @Test
    void tinyBlocks() {
        for (Scaling scaling : BLOCKS) {
            Tensor x = open.tensor(DType.FLOAT32, new double[16 * 16], 16, 16);
            float[] values = new float[256];
            Arrays.fill(values, Float.MIN_VALUE);
            x.set(open.stream(), values);
            QuantizedTensor q =
                    open.scope().quantized(scaling, DType.FLOAT8_E4M3, 16, 16).allocateRowwise(open.scope());
            Cast.quantize(x, q, open.stream());
            assertEquals(1 / Float.MAX_VALUE, open.read(q.rowwiseScaleInverse())[0]);
        }
    }

    @Test
    void noop() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 16, 16, 1));
        Tensor flag = open.tensor(DType.FLOAT32, new double[] {1}, 1);
        for (Scaling scaling : BLOCKS) {
            QuantizedTensor q =
                    open.scope().quantized(scaling, DType.FLOAT8_E4M3, 16, 16).allocateRowwise(open.scope());
            q.rowwise().zero(open.stream());
            Cast.quantize(x, q, QuantizationConfig.standard().withNoop(flag), open.stream());
            assertArrayEquals(new byte[256], q.rowwise().toBytes(open.stream()));
        }
    }

    /** d [m, n] sums over k; a and b with these scalings. */
    record Product(
            Scaling left, Scaling right, DType result, Transpose transA, Transpose transB, int m, int k, int n) {}

    static List<Product> products() {
        List<Product> products = new ArrayList<>();
        for (int[] size : new int[][] {{8, 16, 8}, {16, 128, 24}, {136, 272, 144}, {256, 256, 128}}) {
            for (Transpose transA : Transpose.values()) {
                for (Transpose transB : Transpose.values()) {
                    for (DType result : List.of(DType.BFLOAT16, DType.FLOAT32)) {
                        for (Scaling left : BLOCKS) {
                            products.add(new Product(
                                    left, Scaling.BLOCK_1D, result, transA, transB, size[0], size[1], size[2]));
                        }
                        products.add(new Product(
                                Scaling.BLOCK_1D, Scaling.BLOCK_2D, result, transA, transB, size[0], size[1], size[2]));
                    }
                }
            }
        }
        return products;
    }

    @ParameterizedTest
    @MethodSource("products")
    void product(Product c) {
        DType dtype = DType.FLOAT8_E4M3;
        Float8Matrix a = c.transA == Transpose.NO
                ? Float8Matrix.rowwise(open, c.left, dtype, c.m, c.k)
                : Float8Matrix.columnwise(open, c.left, dtype, c.k, c.m);
        Float8Matrix b = c.transB == Transpose.NO
                ? Float8Matrix.columnwise(open, c.right, dtype, c.k, c.n)
                : Float8Matrix.rowwise(open, c.right, dtype, c.n, c.k);
        RealMatrix left = c.transA == Transpose.NO ? a.values() : a.values().transpose();
        RealMatrix right = c.transB == Transpose.NO ? b.values() : b.values().transpose();
        RealMatrix expected = left.multiply(right);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Gemm.gemm(a.tensor(), c.transA, b.tensor(), c.transB, d, Output.OVERWRITE, Accumulator.SPLIT, open.stream());
        open.assertClose("d", expected, d, Tolerances.float8Product(c.result));
        double[] bias = open.normal(DType.BFLOAT16, c.n, 1);
        Tensor added = open.tensor(DType.BFLOAT16, bias, c.n);
        Gemm.gemmBias(a.tensor(), c.transA, b.tensor(), c.transB, added, d, Accumulator.SPLIT, open.stream());
        for (int row = 0; row < c.m; row++) {
            expected.setRowVector(row, expected.getRowVector(row).add(MatrixUtils.createRealVector(bias)));
        }
        open.assertClose("d with bias", expected, d, Tolerances.float8Product(c.result));
    }

    @Test
    void withoutElements() {
        for (Scaling scaling : BLOCKS) {
            QuantizedTensor none =
                    open.scope().quantized(scaling, DType.FLOAT8_E4M3, 0, 64).allocateRowwise(open.scope());
            Cast.quantize(open.scope().tensor(DType.BFLOAT16, 0, 64), none, open.stream());
        }
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 32, 64, 1));
        QuantizedTensor q = open.scope()
                .quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 32, 64)
                .allocateRowwise(open.scope())
                .allocateColumnwise(open.scope());
        Tensor d = open.unwritten(DType.BFLOAT16, 32, 32);
        Allocation.assertNone("blocks", () -> {
            Cast.quantize(x, q, open.stream());
            Gemm.gemm(q, Transpose.NO, q, Transpose.YES, d, Output.OVERWRITE, Accumulator.SPLIT, open.stream());
        });
    }
}
