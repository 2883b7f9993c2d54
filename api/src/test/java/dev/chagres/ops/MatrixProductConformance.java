package dev.chagres.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.witness.GeluWitness;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.MatrixUtils;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** {@code MatrixProduct}: the first plan against {@code Gemm} bit by bit, the measured one against double precision. */
@Tag("L0")
@Tag("L1")
class MatrixProductConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** d [m, n] sums over k. */
    record Case(DType dtype, DType result, Transpose transA, Transpose transB, int m, int k, int n) {
        boolean sixteenBits() {
            return dtype != DType.FLOAT32 && dtype == result && n % 8 == 0;
        }

        Tolerance tolerance() {
            return dtype == result ? Tolerances.product(dtype) : Tolerances.weightGradient(dtype);
        }
    }

    static List<Case> cases() {
        int[][] sizes = {{1, 1, 1}, {3, 5, 7}, {17, 65, 31}, {63, 129, 127}, {128, 40, 96}, {256, 320, 264}};
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
        return cases().stream().filter(Case::sixteenBits).toList();
    }

    static List<Case> transposedCases() {
        return cases().stream().filter(c -> c.transA == Transpose.YES).toList();
    }

    /** The operands of a case, where their products go, and the product in double precision. */
    private static final class Operands {
        private final Case c;
        private final Tensor a;
        private final Tensor b;
        private final RealMatrix left;
        private final RealMatrix product;
        private final Tensor d;
        private final Tensor preGelu;

        Operands(Case c) {
            this.c = c;
            left = open.normal(c.dtype, c.m, c.k, 1);
            RealMatrix right = open.normal(c.dtype, c.k, c.n, 1 / Math.sqrt(c.k));
            a = open.tensor(c.dtype, c.transA == Transpose.NO ? left : left.transpose());
            b = open.tensor(c.dtype, c.transB == Transpose.NO ? right : right.transpose());
            product = left.multiply(right);
            d = open.unwritten(c.result, c.m, c.n);
            preGelu = open.unwritten(c.result, c.m, c.n);
        }

        void close(String what, RealMatrix expected, Tensor actual) {
            open.assertClose(what, expected, actual, c.tolerance());
        }
    }

    private static void same(String what, Tensor expected, Tensor actual) {
        assertArrayEquals(open.read(expected), open.read(actual), what);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void plain(Case c) {
        Operands in = new Operands(c);
        Tensor wanted = open.unwritten(c.result, c.m, c.n);
        Gemm.gemm(in.a, c.transA, in.b, c.transB, wanted, Output.OVERWRITE, open.stream());
        MatrixProduct.of(c.transA, c.transB, ProductPlan.FIRST)
                .product(in.a, in.b, in.d, Output.OVERWRITE, open.stream());
        same("d", wanted, in.d);
        Gemm.gemm(in.a, c.transA, in.b, c.transB, wanted, Output.ADD, open.stream());
        MatrixProduct.of(c.transA, c.transB, ProductPlan.FIRST).product(in.a, in.b, in.d, Output.ADD, open.stream());
        same("d, added to", wanted, in.d);
        ProductPlan measured = ProductPlan.MEASURED;
        RealMatrix before = open.normal(c.result, c.m, c.n, 1);
        Tensor sum = open.tensor(c.result, before);
        MatrixProduct.of(c.transA, c.transB, measured).product(in.a, in.b, sum, Output.ADD, open.stream());
        in.close("added to before it was measured", before.add(in.product), sum);
        MatrixProduct.of(c.transA, c.transB, measured).product(in.a, in.b, in.d, Output.OVERWRITE, open.stream());
        in.close("measured", in.product, in.d);
        open.set(sum, before);
        MatrixProduct.of(c.transA, c.transB, measured).product(in.a, in.b, sum, Output.ADD, open.stream());
        in.close("added to, measured", before.add(in.product), sum);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void bias(Case c) {
        Operands in = new Operands(c);
        double[] values = open.normal(c.result, c.n, 1);
        Tensor bias = open.tensor(c.result, values, c.n);
        Tensor wanted = open.unwritten(c.result, c.m, c.n);
        Gemm.gemmBias(in.a, c.transA, in.b, c.transB, bias, wanted, open.stream());
        MatrixProduct.of(c.transA, c.transB, ProductPlan.FIRST).productBias(in.a, in.b, bias, in.d, open.stream());
        same("d", wanted, in.d);
        MatrixProduct.of(c.transA, c.transB, ProductPlan.MEASURED).productBias(in.a, in.b, bias, in.d, open.stream());
        in.close("measured", addToEach(in.product, values), in.d);
    }

    @ParameterizedTest
    @MethodSource("transposedCases")
    void biasGradient(Case c) {
        Operands in = new Operands(c);
        Tensor wanted = open.unwritten(c.result, c.m, c.n);
        Tensor wantedSums = open.unwritten(c.result, c.m);
        Tensor sums = open.unwritten(c.result, c.m);
        Gemm.gemmBiasGradient(in.a, in.b, c.transB, wantedSums, wanted, open.stream());
        MatrixProduct.of(Transpose.YES, c.transB, ProductPlan.FIRST)
                .productBiasGradient(in.a, in.b, sums, in.d, open.stream());
        same("d", wanted, in.d);
        same("dbias", wantedSums, sums);
        MatrixProduct.of(Transpose.YES, c.transB, ProductPlan.MEASURED)
                .productBiasGradient(in.a, in.b, sums, in.d, open.stream());
        in.close("measured", in.product, in.d);
        double[] expected = new double[c.m];
        for (int row = 0; row < c.m; row++) {
            for (double value : in.left.getRow(row)) {
                expected[row] += value;
            }
        }
        open.assertClose("measured dbias", expected, open.read(sums), Math.sqrt(c.k), c.tolerance());
    }

    @ParameterizedTest
    @MethodSource("sixteenBitCases")
    void biasGelu(Case c) {
        Operands in = new Operands(c);
        double[] values = open.normal(c.dtype, c.n, 1);
        Tensor bias = open.tensor(c.dtype, values, c.n);
        Tensor wanted = open.unwritten(c.dtype, c.m, c.n);
        Tensor before = open.unwritten(c.dtype, c.m, c.n);
        Gemm.gemmBiasGelu(in.a, c.transA, in.b, c.transB, bias, before, wanted, open.stream());
        ProductPlan plan = ProductPlan.FIRST;
        MatrixProduct.of(c.transA, c.transB, plan).productBiasGelu(in.a, in.b, bias, in.preGelu, in.d, open.stream());
        same("d", wanted, in.d);
        same("preGelu", before, in.preGelu);
        plan = ProductPlan.MEASURED;
        MatrixProduct.of(c.transA, c.transB, plan).productBiasGelu(in.a, in.b, bias, in.preGelu, in.d, open.stream());
        RealMatrix expected = addToEach(in.product, values);
        in.close("measured preGelu", expected, in.preGelu);
        in.close("measured d", new GeluWitness().forward(expected), in.d);
    }

    @ParameterizedTest
    @MethodSource("sixteenBitCases")
    void gelu(Case c) {
        Operands in = new Operands(c);
        Tensor wanted = open.unwritten(c.dtype, c.m, c.n);
        Tensor before = open.unwritten(c.dtype, c.m, c.n);
        Gemm.gemmGelu(in.a, c.transA, in.b, c.transB, before, wanted, open.stream());
        MatrixProduct.of(c.transA, c.transB, ProductPlan.FIRST)
                .productGelu(in.a, in.b, in.preGelu, in.d, open.stream());
        same("d", wanted, in.d);
        same("preGelu", before, in.preGelu);
        ProductPlan plan = ProductPlan.MEASURED;
        MatrixProduct.of(c.transA, c.transB, plan).productGelu(in.a, in.b, in.preGelu, in.d, open.stream());
        in.close("measured preGelu", in.product, in.preGelu);
        in.close("measured d", new GeluWitness().forward(in.product), in.d);
    }

    @ParameterizedTest
    @MethodSource("sixteenBitCases")
    void geluGradient(Case c) {
        Operands in = new Operands(c);
        RealMatrix before = open.normal(c.dtype, c.m, c.n, 1);
        Tensor preGelu = open.tensor(c.dtype, before);
        Tensor wanted = open.unwritten(c.dtype, c.m, c.n);
        Gemm.gemmGeluGradient(in.a, c.transA, in.b, c.transB, preGelu, wanted, open.stream());
        ProductPlan plan = ProductPlan.FIRST;
        MatrixProduct.of(c.transA, c.transB, plan).productGeluGradient(in.a, in.b, preGelu, in.d, open.stream());
        same("d", wanted, in.d);
        plan = ProductPlan.MEASURED;
        MatrixProduct.of(c.transA, c.transB, plan).productGeluGradient(in.a, in.b, preGelu, in.d, open.stream());
        GeluWitness gelu = new GeluWitness();
        gelu.forward(before);
        in.close("measured d", gelu.backward(in.product), in.d);
        in.close("preGelu, which is read", before, preGelu);
    }

    /** A capture takes the plan on hand and measures nothing; the graph repeats the product. */
    @ParameterizedTest
    @EnumSource(ProductPlan.class)
    void captured(ProductPlan plan) {
        Case c = new Case(DType.BFLOAT16, DType.BFLOAT16, Transpose.NO, Transpose.YES, 64, 96, 48);
        Operands in = new Operands(c);
        MatrixProduct.of(c.transA, c.transB, plan).product(in.a, in.b, in.d, Output.OVERWRITE, open.stream());
        Tensor captured = open.unwritten(c.result, c.m, c.n);
        Tensor unseen = open.unwritten(DType.FLOAT32, c.m, c.n);
        try (Graph graph = open.stream().capture(() -> {
            MatrixProduct.of(c.transA, c.transB, plan).product(in.a, in.b, captured, Output.OVERWRITE, open.stream());
            MatrixProduct.of(c.transA, c.transB, plan).product(in.a, in.b, unseen, Output.OVERWRITE, open.stream());
        })) {
            graph.launch();
            same("captured", in.d, captured);
            open.assertClose("captured, of another kind", in.product, unseen, Tolerances.weightGradient(c.dtype));
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void sumOverNothing(DType dtype) {
        ProductPlan plan = ProductPlan.MEASURED;
        Tensor a = open.scope().tensor(dtype, 3, 0);
        Tensor b = open.scope().tensor(dtype, 0, 8);
        Tensor d = open.unwritten(dtype, 3, 8);
        MatrixProduct.of(Transpose.NO, Transpose.NO, plan).product(a, b, d, Output.OVERWRITE, open.stream());
        assertArrayEquals(new float[24], open.read(d), "overwritten by a sum over nothing");
        Tensor dbias = open.unwritten(dtype, 3);
        Tensor none = open.scope().tensor(dtype, 0, 3);
        MatrixProduct.of(Transpose.YES, Transpose.NO, plan).productBiasGradient(none, b, dbias, d, open.stream());
        assertArrayEquals(new float[3], open.read(dbias));
        Tensor empty = open.scope().tensor(dtype, 0, 8);
        Tensor w = open.tensor(dtype, open.normal(dtype, 16, 8, 1));
        Tensor noRows = open.scope().tensor(dtype, 0, 16);
        MatrixProduct.of(Transpose.NO, Transpose.YES, plan).product(empty, w, noRows, Output.ADD, open.stream());
        if (dtype != DType.FLOAT32) {
            Tensor preGelu = open.tensor(dtype, open.normal(dtype, 3, 8, 1));
            MatrixProduct.of(Transpose.NO, Transpose.NO, plan).productGelu(a, b, preGelu, d, open.stream());
            assertArrayEquals(new float[24], open.read(preGelu));
            MatrixProduct.of(Transpose.NO, Transpose.NO, plan).productGeluGradient(a, b, preGelu, d, open.stream());
            assertArrayEquals(new float[24], open.read(d));
        }
    }

    @Test
    void makesNoGarbage() {
        Case c = new Case(DType.BFLOAT16, DType.BFLOAT16, Transpose.NO, Transpose.YES, 16, 32, 64);
        Operands in = new Operands(c);
        Tensor bias = open.tensor(c.dtype, open.normal(c.dtype, c.n, 1), c.n);
        ProductPlan plan = ProductPlan.MEASURED;
        Allocation.assertNone("products", () -> {
            MatrixProduct.of(c.transA, c.transB, plan).product(in.a, in.b, in.d, Output.OVERWRITE, open.stream());
            MatrixProduct.of(c.transA, c.transB, plan).productBias(in.a, in.b, bias, in.d, open.stream());
            MatrixProduct.of(c.transA, c.transB, plan)
                    .productBiasGelu(in.a, in.b, bias, in.preGelu, in.d, open.stream());
            MatrixProduct.of(c.transA, c.transB, plan).productGeluGradient(in.a, in.b, in.preGelu, in.d, open.stream());
        });
    }

    private static RealMatrix addToEach(RealMatrix x, double[] summand) {
        RealMatrix sum = x.copy();
        for (int row = 0; row < x.getRowDimension(); row++) {
            sum.setRowVector(row, x.getRowVector(row).add(MatrixUtils.createRealVector(summand)));
        }
        return sum;
    }
}
