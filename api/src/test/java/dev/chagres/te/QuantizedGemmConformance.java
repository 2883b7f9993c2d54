package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** FP8 products of {@code Gemm} with one scale, against double precision: both transposes, every pair of types. */
@Tag("L0")
@Tag("L1")
class QuantizedGemmConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** d [m, n] sums over k. */
    record Case(
            DType left,
            DType right,
            DType result,
            Accumulator accumulator,
            Transpose transA,
            Transpose transB,
            int m,
            int k,
            int n) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (int[] size : new int[][] {{1, 16, 8}, {3, 16, 24}, {64, 64, 64}, {65, 112, 136}, {128, 256, 96}}) {
            for (Transpose transA : Transpose.values()) {
                for (Transpose transB : Transpose.values()) {
                    for (DType result : List.of(DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)) {
                        Accumulator accumulator = size[1] % 64 == 0 ? Accumulator.SPLIT : Accumulator.FAST;
                        for (DType[] pair : pairs()) {
                            cases.add(new Case(
                                    pair[0], pair[1], result, accumulator, transA, transB, size[0], size[1], size[2]));
                        }
                    }
                }
            }
        }
        return cases;
    }

    private static DType[][] pairs() {
        return new DType[][] {
            {DType.FLOAT8_E4M3, DType.FLOAT8_E4M3},
            {DType.FLOAT8_E5M2, DType.FLOAT8_E4M3},
            {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}
        };
    }

    /** The operands of a case, each with the one copy that the product reads, and their product in double precision. */
    private static final class Operands {
        private final QuantizedTensor a;
        private final QuantizedTensor b;
        private final RealMatrix product;

        Operands(Case c) {
            Float8Matrix left = c.transA == Transpose.NO
                    ? Float8Matrix.rowwise(open, Scaling.TENSOR, c.left, c.m, c.k)
                    : Float8Matrix.columnwise(open, Scaling.TENSOR, c.left, c.k, c.m);
            Float8Matrix right = c.transB == Transpose.NO
                    ? Float8Matrix.columnwise(open, Scaling.TENSOR, c.right, c.k, c.n)
                    : Float8Matrix.rowwise(open, Scaling.TENSOR, c.right, c.n, c.k);
            a = left.tensor();
            b = right.tensor();
            RealMatrix first =
                    c.transA == Transpose.NO ? left.values() : left.values().transpose();
            RealMatrix second =
                    c.transB == Transpose.NO ? right.values() : right.values().transpose();
            product = first.multiply(second);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void plain(Case c) {
        Operands in = new Operands(c);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Gemm.gemm(in.a, c.transA, in.b, c.transB, d, Output.OVERWRITE, c.accumulator, open.stream());
        open.assertClose("d", in.product, d, Tolerances.float8Product(c.result));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void adding(Case c) {
        Operands in = new Operands(c);
        RealMatrix before = open.normal(c.result, c.m, c.n, 1);
        Tensor d = open.tensor(c.result, before);
        Gemm.gemm(in.a, c.transA, in.b, c.transB, d, Output.ADD, c.accumulator, open.stream());
        open.assertClose("d", before.add(in.product), d, Tolerances.float8Product(c.result));
    }

    @ParameterizedTest
    @MethodSource("cases")
    void bias(Case c) {
        Operands in = new Operands(c);
        DType biasType = c.result == DType.FLOAT32 ? DType.BFLOAT16 : c.result;
        double[] bias = open.normal(biasType, c.n, 1);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Tensor added = open.tensor(biasType, bias, c.n);
        Gemm.gemmBias(in.a, c.transA, in.b, c.transB, added, d, c.accumulator, open.stream());
        RealMatrix expected = in.product.copy();
        for (int row = 0; row < c.m; row++) {
            expected.setRowVector(row, expected.getRowVector(row).add(MatrixUtils.createRealVector(bias)));
        }
        open.assertClose("d", expected, d, Tolerances.float8Product(c.result));
    }

    @Test
    void sumOverNothing() {
        QuantizedTensor a = rowwise(16, 0);
        QuantizedTensor b = rowwise(8, 0);
        Tensor d = open.unwritten(DType.BFLOAT16, 16, 8);
        Gemm.gemm(a, Transpose.NO, b, Transpose.YES, d, Output.OVERWRITE, Accumulator.FAST, open.stream());
        assertArrayEquals(new float[128], open.read(d), "overwritten by a sum over nothing");
        open.set(d, open.normal(DType.BFLOAT16, 128, 1));
        float[] before = open.read(d);
        Gemm.gemm(a, Transpose.NO, b, Transpose.YES, d, Output.ADD, Accumulator.FAST, open.stream());
        assertArrayEquals(before, open.read(d), "a sum over nothing added");
    }

    @Test
    void withoutRowsOrColumns() {
        Tensor none = open.scope().tensor(DType.BFLOAT16, 0, 8);
        Tensor bias = open.scope().tensor(DType.BFLOAT16, 8);
        QuantizedTensor a = rowwise(0, 32);
        QuantizedTensor w = rowwise(8, 32);
        Gemm.gemm(a, Transpose.NO, w, Transpose.YES, none, Output.OVERWRITE, Accumulator.FAST, open.stream());
        Gemm.gemmBias(a, Transpose.NO, w, Transpose.YES, bias, none, Accumulator.FAST, open.stream());
        Tensor thin = open.scope().tensor(DType.BFLOAT16, 8, 0);
        Gemm.gemm(w, Transpose.NO, a, Transpose.YES, thin, Output.OVERWRITE, Accumulator.FAST, open.stream());
        open.stream().synchronize();
    }

    private static QuantizedTensor rowwise(long rows, long columns) {
        return Float8Matrix.emptyRowwise(open, DType.FLOAT8_E4M3, rows, columns, 1);
    }

    @Test
    void makesNoGarbage() {
        QuantizedTensor a = Float8Matrix.rowwise(open, Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 32)
                .tensor();
        QuantizedTensor b = Float8Matrix.rowwise(open, Scaling.TENSOR, DType.FLOAT8_E4M3, 64, 32)
                .tensor();
        Tensor d = open.unwritten(DType.BFLOAT16, 16, 64);
        Tensor bias = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 64, 1), 64);
        Allocation.assertNone("FP8 products", () -> {
            Gemm.gemm(a, Transpose.NO, b, Transpose.YES, d, Output.ADD, Accumulator.SPLIT, open.stream());
            Gemm.gemmBias(a, Transpose.NO, b, Transpose.YES, bias, d, Accumulator.FAST, open.stream());
            Gemm.gemmBias(a, Transpose.NO, b, Transpose.YES, bias, d, Accumulator.SPLIT, open.stream());
        });
    }
}
