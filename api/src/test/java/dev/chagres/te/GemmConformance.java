package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.witness.GeluWitness;
import dev.chagres.witness.Rounding;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code Gemm} against double precision: both transposes, every type, with what may follow a product. */
@Tag("L0")
@Tag("L1")
class GemmConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** d [m, n] sums over k. */
    record Case(DType dtype, DType result, Transpose transA, Transpose transB, int m, int k, int n) {
        boolean sixteenBits() {
            return dtype != DType.FLOAT32 && dtype == result;
        }

        Tolerance tolerance() {
            return dtype == result ? Tolerances.product(dtype) : Tolerances.weightGradient(dtype);
        }
    }

    static List<Case> cases() {
        int[][] sizes = {
            {1, 1, 1}, {3, 5, 7}, {16, 64, 32}, {17, 65, 31}, {64, 64, 64}, {63, 129, 127}, {128, 40, 96}, {1, 320, 24}
        };
        List<Case> cases = new ArrayList<>();
        for (int[] size : sizes) {
            for (Transpose transA : Transpose.values()) {
                for (Transpose transB : Transpose.values()) {
                    for (DType dtype : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                        cases.add(new Case(dtype, dtype, transA, transB, size[0], size[1], size[2]));
                        if (dtype != DType.FLOAT32) {
                            cases.add(new Case(dtype, DType.FLOAT32, transA, transB, size[0], size[1], size[2]));
                        }
                    }
                }
            }
        }
        return cases;
    }

    static List<Case> sixteenBitCases() {
        return cases().stream().filter(c -> c.sixteenBits() && c.n % 8 == 0).toList();
    }

    /** The operands of a case, and their product in double precision. */
    private static final class Operands {
        private final Tensor a;
        private final Tensor b;
        private final RealMatrix left;
        private final RealMatrix product;

        Operands(Case c) {
            left = open.normal(c.dtype, c.m, c.k, 1);
            RealMatrix right = open.normal(c.dtype, c.k, c.n, 1 / Math.sqrt(c.k));
            a = open.tensor(c.dtype, c.transA == Transpose.NO ? left : left.transpose());
            b = open.tensor(c.dtype, c.transB == Transpose.NO ? right : right.transpose());
            product = left.multiply(right);
        }
    }

    @ParameterizedTest
    @MethodSource("cases")
    void plain(Case c) {
        Operands in = new Operands(c);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Gemm.gemm(in.a, c.transA, in.b, c.transB, d, Output.OVERWRITE, open.stream());
        open.assertClose("d", in.product, d, c.tolerance());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void adding(Case c) {
        Operands in = new Operands(c);
        RealMatrix before = open.normal(c.result, c.m, c.n, 1);
        Tensor d = open.tensor(c.result, before);
        Gemm.gemm(in.a, c.transA, in.b, c.transB, d, Output.ADD, open.stream());
        open.assertClose("d", before.add(in.product), d, c.tolerance());
    }

    @ParameterizedTest
    @MethodSource("cases")
    void bias(Case c) {
        Operands in = new Operands(c);
        double[] bias = open.normal(c.result, c.n, 1);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Gemm.gemmBias(in.a, c.transA, in.b, c.transB, open.tensor(c.result, bias, c.n), d, open.stream());
        open.assertClose("d", addToEach(in.product, bias), d, c.tolerance());
    }

    static List<Case> transposedCases() {
        return cases().stream().filter(c -> c.transA == Transpose.YES).toList();
    }

    /** cuBLASLt has the epilogue where the first operand is read transposed, as in a weight's gradient. */
    @ParameterizedTest
    @MethodSource("transposedCases")
    void biasGradient(Case c) {
        Operands in = new Operands(c);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Tensor dbias = open.unwritten(c.result, c.m);
        Gemm.gemmBiasGradient(in.a, in.b, c.transB, dbias, d, open.stream());
        open.assertClose("d", in.product, d, c.tolerance());
        double[] sums = new double[c.m];
        for (int row = 0; row < c.m; row++) {
            sums[row] = sum(in.left.getRow(row));
        }
        open.assertClose("dbias", sums, open.read(dbias), Math.sqrt(c.k), c.tolerance());
    }

    @ParameterizedTest
    @MethodSource("sixteenBitCases")
    void biasGelu(Case c) {
        Operands in = new Operands(c);
        double[] bias = open.normal(c.dtype, c.n, 1);
        Tensor before = open.unwritten(c.dtype, c.m, c.n);
        Tensor d = open.unwritten(c.dtype, c.m, c.n);
        Tensor biasTensor = open.tensor(c.dtype, bias, c.n);
        Gemm.gemmBiasGelu(in.a, c.transA, in.b, c.transB, biasTensor, before, d, open.stream());
        RealMatrix expected = addToEach(in.product, bias);
        open.assertClose("preGelu", expected, before, c.tolerance());
        open.assertClose("d", new GeluWitness().forward(expected), d, c.tolerance());
    }

    @ParameterizedTest
    @MethodSource("sixteenBitCases")
    void gelu(Case c) {
        Operands in = new Operands(c);
        Tensor before = open.unwritten(c.dtype, c.m, c.n);
        Tensor d = open.unwritten(c.dtype, c.m, c.n);
        Gemm.gemmGelu(in.a, c.transA, in.b, c.transB, before, d, open.stream());
        open.assertClose("preGelu", in.product, before, c.tolerance());
        open.assertClose("d", new GeluWitness().forward(in.product), d, c.tolerance());
    }

    @ParameterizedTest
    @MethodSource("sixteenBitCases")
    void geluGradient(Case c) {
        Operands in = new Operands(c);
        RealMatrix before = open.normal(c.dtype, c.m, c.n, 1);
        Tensor d = open.unwritten(c.dtype, c.m, c.n);
        Gemm.gemmGeluGradient(in.a, c.transA, in.b, c.transB, open.tensor(c.dtype, before), d, open.stream());
        GeluWitness gelu = new GeluWitness();
        gelu.forward(before);
        open.assertClose("d", gelu.backward(in.product), d, c.tolerance());
    }

    /** A product that is added to many times keeps FP32, and rounds each time where it is stored in 16 bits. */
    @Test
    void addingTwiceToSixteenBitsRoundsTwice() {
        Tensor a = open.tensor(DType.BFLOAT16, new BlockRealMatrix(new double[][] {{1}}));
        Tensor b = open.tensor(DType.BFLOAT16, new BlockRealMatrix(new double[][] {{1.0 / 256}}));
        Tensor exact = open.tensor(DType.FLOAT32, new BlockRealMatrix(new double[][] {{1}}));
        Tensor rounded = open.tensor(DType.BFLOAT16, new BlockRealMatrix(new double[][] {{1}}));
        for (int i = 0; i < 2; i++) {
            Gemm.gemm(a, Transpose.NO, b, Transpose.NO, exact, Output.ADD, open.stream());
            Gemm.gemm(a, Transpose.NO, b, Transpose.NO, rounded, Output.ADD, open.stream());
        }
        assertArrayEquals(new float[] {1 + 2f / 256}, open.read(exact));
        assertArrayEquals(new float[] {(float) Rounding.round(1 + 1.0 / 256, DType.BFLOAT16)}, open.read(rounded));
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void sumOverNothing(DType dtype) {
        Tensor a = open.scope().tensor(dtype, 3, 0);
        Tensor b = open.scope().tensor(dtype, 0, 8);
        Tensor d = open.unwritten(dtype, 3, 8);
        Gemm.gemm(a, Transpose.NO, b, Transpose.NO, d, Output.OVERWRITE, open.stream());
        assertArrayEquals(new float[24], open.read(d), "overwritten by a sum over nothing");
        open.set(d, open.normal(dtype, 24, 1));
        float[] before = open.read(d);
        Gemm.gemm(a, Transpose.NO, b, Transpose.NO, d, Output.ADD, open.stream());
        assertArrayEquals(before, open.read(d), "a sum over nothing added");
        Tensor dbias = open.unwritten(dtype, 3);
        Gemm.gemmBiasGradient(open.scope().tensor(dtype, 0, 3), b, Transpose.NO, dbias, d, open.stream());
        assertArrayEquals(new float[24], open.read(d));
        assertArrayEquals(new float[3], open.read(dbias));
        if (dtype != DType.FLOAT32) {
            Tensor preGelu = open.tensor(dtype, open.normal(dtype, 3, 8, 1));
            Tensor gradient = open.unwritten(dtype, 3, 8);
            Gemm.gemmGeluGradient(a, Transpose.NO, b, Transpose.NO, preGelu, gradient, open.stream());
            assertArrayEquals(new float[24], open.read(gradient));
            open.set(gradient, open.normal(dtype, 24, 1));
            Gemm.gemmGelu(a, Transpose.NO, b, Transpose.NO, preGelu, gradient, open.stream());
            assertArrayEquals(new float[24], open.read(gradient));
            assertArrayEquals(new float[24], open.read(preGelu));
        }
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void withoutRowsOrColumns(DType dtype) {
        Tensor none = open.scope().tensor(dtype, 0, 8);
        Tensor w = open.tensor(dtype, open.normal(dtype, 16, 8, 1));
        Tensor bias = open.tensor(dtype, open.normal(dtype, 16, 1), 16);
        Tensor d = open.scope().tensor(dtype, 0, 16);
        Gemm.gemm(none, Transpose.NO, w, Transpose.YES, d, Output.OVERWRITE, open.stream());
        Gemm.gemm(none, Transpose.NO, w, Transpose.YES, d, Output.ADD, open.stream());
        Gemm.gemmBias(none, Transpose.NO, w, Transpose.YES, bias, d, open.stream());
        Tensor thin = open.scope().tensor(dtype, 16, 0);
        Gemm.gemm(w, Transpose.NO, none, Transpose.YES, thin, Output.OVERWRITE, open.stream());
        if (dtype != DType.FLOAT32) {
            Tensor preGelu = open.scope().tensor(dtype, 0, 16);
            Gemm.gemmBiasGelu(none, Transpose.NO, w, Transpose.YES, bias, preGelu, d, open.stream());
            Gemm.gemmGelu(none, Transpose.NO, w, Transpose.YES, preGelu, d, open.stream());
            Gemm.gemmGeluGradient(none, Transpose.NO, w, Transpose.YES, preGelu, d, open.stream());
        }
        Tensor noBias = open.scope().tensor(dtype, 0);
        Tensor noRows = open.scope().tensor(dtype, 0, 16);
        Gemm.gemmBiasGradient(open.scope().tensor(dtype, 8, 0), w, Transpose.YES, noBias, noRows, open.stream());
        open.stream().synchronize();
    }

    @Test
    void makesNoGarbage() {
        Case c = new Case(DType.BFLOAT16, DType.BFLOAT16, Transpose.NO, Transpose.YES, 16, 32, 64);
        Operands in = new Operands(c);
        Tensor bias = open.tensor(c.dtype, open.normal(c.dtype, c.n, 1), c.n);
        Tensor preGelu = open.unwritten(c.dtype, c.m, c.n);
        Tensor d = open.unwritten(c.dtype, c.m, c.n);
        Tensor dbias = open.unwritten(c.dtype, c.m);
        Tensor transposed = open.tensor(c.dtype, open.normal(c.dtype, c.k, c.m, 1));
        Allocation.assertNone("products", () -> {
            Gemm.gemm(in.a, c.transA, in.b, c.transB, d, Output.OVERWRITE, open.stream());
            Gemm.gemmBias(in.a, c.transA, in.b, c.transB, bias, d, open.stream());
            Gemm.gemmBiasGelu(in.a, c.transA, in.b, c.transB, bias, preGelu, d, open.stream());
            Gemm.gemmGelu(in.a, c.transA, in.b, c.transB, preGelu, d, open.stream());
            Gemm.gemmGeluGradient(in.a, c.transA, in.b, c.transB, preGelu, d, open.stream());
            Gemm.gemmBiasGradient(transposed, in.b, c.transB, dbias, d, open.stream());
        });
    }

    private static RealMatrix addToEach(RealMatrix x, double[] summand) {
        RealMatrix sum = x.copy();
        for (int row = 0; row < x.getRowDimension(); row++) {
            sum.setRowVector(row, x.getRowVector(row).add(MatrixUtils.createRealVector(summand)));
        }
        return sum;
    }

    private static double sum(double[] values) {
        double sum = 0;
        for (double value : values) {
            sum += value;
        }
        return sum;
    }
}
