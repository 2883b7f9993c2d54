package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.Cast;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import java.util.ArrayList;
import java.util.List;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * {@code MatrixProduct} of FP8 numbers: the first plan against {@code Gemm} bit by bit, the measured one against products of what
 * the numbers stand for in double precision.
 */
@Tag("L0")
@Tag("L1")
class QuantizedMatrixProductConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static final QuantizationConfig POWERS_OF_TWO =
            QuantizationConfig.standard().withScales(QuantizationConfig.Scales.POWER_OF_2);

    /** d [m, n] sums over k. */
    record Case(
            DType left,
            DType right,
            Scaling leftScaling,
            Scaling rightScaling,
            DType result,
            Accumulator accumulator,
            Transpose transA,
            Transpose transB,
            int m,
            int k,
            int n) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (int[] size : new int[][] {{16, 16, 16}, {64, 112, 48}, {128, 256, 272}}) {
            for (Transpose transA : Transpose.values()) {
                for (Transpose transB : Transpose.values()) {
                    for (DType result : List.of(DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)) {
                        for (Accumulator accumulator : Accumulator.values()) {
                            addCases(cases, result, accumulator, transA, transB, size);
                        }
                    }
                }
            }
        }
        return cases;
    }

    private static void addCases(
            List<Case> cases, DType result, Accumulator accumulator, Transpose transA, Transpose transB, int[] size) {
        DType e4m3 = DType.FLOAT8_E4M3;
        DType e5m2 = DType.FLOAT8_E5M2;
        for (DType[] pair : new DType[][] {{e4m3, e4m3}, {e5m2, e4m3}, {e4m3, e5m2}}) {
            for (Scaling[] scaling : scalings(accumulator)) {
                cases.add(new Case(
                        pair[0],
                        pair[1],
                        scaling[0],
                        scaling[1],
                        result,
                        accumulator,
                        transA,
                        transB,
                        size[0],
                        size[1],
                        size[2]));
            }
        }
    }

    private static List<Scaling[]> scalings(Accumulator accumulator) {
        List<Scaling[]> all = new ArrayList<>();
        all.add(new Scaling[] {Scaling.TENSOR, Scaling.TENSOR});
        if (accumulator == Accumulator.SPLIT) {
            all.add(new Scaling[] {Scaling.BLOCK_1D, Scaling.BLOCK_1D});
            all.add(new Scaling[] {Scaling.BLOCK_1D, Scaling.BLOCK_2D});
            all.add(new Scaling[] {Scaling.BLOCK_2D, Scaling.BLOCK_1D});
        }
        return all;
    }

    /** A matrix and its copies in eight bits; what it says in double precision is what its rowwise copy stands for. */
    private record Matrix(QuantizedTensor tensor, RealMatrix values) {}

    private static Matrix matrix(DType type, Scaling scaling, int rows, int columns) {
        Tensor plain = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, rows, columns, 1));
        QuantizedTensor quantized = open.scope()
                .quantized(scaling, type, rows, columns)
                .allocateRowwise(open.scope())
                .allocateColumnwise(open.scope());
        if (scaling == Scaling.TENSOR) {
            quantized
                    .scale(open.scope().tensor(DType.FLOAT32, 1))
                    .amax(open.scope().tensor(DType.FLOAT32, 1));
            RecipeUpdates.computeAmax(plain, quantized, QuantizationConfig.standard(), open.stream());
            RecipeUpdates.computeScaleFromAmax(quantized, QuantizationConfig.standard(), open.stream());
            Cast.quantize(plain, quantized, open.stream());
        } else {
            Cast.quantize(plain, quantized, POWERS_OF_TWO, open.stream());
        }
        return new Matrix(quantized, doubles(plain));
    }

    private static RealMatrix doubles(Tensor tensor) {
        float[] values = open.read(tensor);
        int columns = Math.toIntExact(tensor.size(1));
        RealMatrix matrix = new BlockRealMatrix(values.length / columns, columns);
        for (int i = 0; i < values.length; i++) {
            matrix.setEntry(i / columns, i % columns, values[i]);
        }
        return matrix;
    }

    private static Matrix left(Case c) {
        boolean plain = c.transA == Transpose.NO;
        return matrix(c.left, c.leftScaling, plain ? c.m : c.k, plain ? c.k : c.m);
    }

    private static Matrix right(Case c) {
        boolean plain = c.transB == Transpose.NO;
        return matrix(c.right, c.rightScaling, plain ? c.k : c.n, plain ? c.n : c.k);
    }

    /** Another kernel sums in another order: as far from the first as any product may be from the exact one. */
    private static void near(String what, Tensor first, Tensor measured) {
        Tolerance tolerance = Tolerances.float8Product(first.dtype());
        open.assertClose(what, doubles(first), measured, tolerance);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void plain(Case c) {
        QuantizedTensor a = left(c).tensor;
        QuantizedTensor b = right(c).tensor;
        Tensor wanted = open.unwritten(c.result, c.m, c.n);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        for (Output output : List.of(Output.OVERWRITE, Output.ADD)) {
            Gemm.gemm(a, c.transA, b, c.transB, wanted, output, c.accumulator, open.stream());
            ProductPlan plan = ProductPlan.FIRST;
            MatrixProduct.of(c.transA, c.transB, plan).product(a, b, d, output, c.accumulator, open.stream());
            assertArrayEquals(open.read(wanted), open.read(d), output.toString());
        }
        for (Output output : List.of(Output.OVERWRITE, Output.ADD)) {
            ProductPlan plan = ProductPlan.MEASURED;
            MatrixProduct.of(c.transA, c.transB, plan).product(a, b, d, output, c.accumulator, open.stream());
        }
        near("measured, and added", wanted, d);
    }

    @ParameterizedTest
    @MethodSource("cases")
    void bias(Case c) {
        QuantizedTensor a = left(c).tensor;
        QuantizedTensor b = right(c).tensor;
        DType type = c.result == DType.FLOAT32 ? DType.BFLOAT16 : c.result;
        Tensor bias = open.tensor(type, open.normal(type, c.n, 1), c.n);
        Tensor wanted = open.unwritten(c.result, c.m, c.n);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        Gemm.gemmBias(a, c.transA, b, c.transB, bias, wanted, c.accumulator, open.stream());
        ProductPlan plan = ProductPlan.FIRST;
        MatrixProduct.of(c.transA, c.transB, plan).productBias(a, b, bias, d, c.accumulator, open.stream());
        assertArrayEquals(open.read(wanted), open.read(d));
        plan = ProductPlan.MEASURED;
        MatrixProduct.of(c.transA, c.transB, plan).productBias(a, b, bias, d, c.accumulator, open.stream());
        near("measured", wanted, d);
    }

    /** What rounding to eight bits leaves of a product: each factor is off by up to 2^-4 of itself. */
    @Test
    void isTheProductOfWhatWasQuantized() {
        Case c = new Case(
                DType.FLOAT8_E4M3,
                DType.FLOAT8_E4M3,
                Scaling.BLOCK_1D,
                Scaling.BLOCK_2D,
                DType.FLOAT32,
                Accumulator.SPLIT,
                Transpose.NO,
                Transpose.YES,
                128,
                256,
                64);
        Matrix a = left(c);
        Matrix b = right(c);
        Tensor d = open.unwritten(c.result, c.m, c.n);
        ProductPlan plan = ProductPlan.MEASURED;
        MatrixProduct.of(c.transA, c.transB, plan)
                .product(a.tensor, b.tensor, d, Output.OVERWRITE, c.accumulator, open.stream());
        RealMatrix off = a.values.multiply(b.values.transpose()).subtract(doubles(d));
        double bound = 0.1 * Math.sqrt(c.k) * Math.sqrt((double) c.m * c.n);
        assertTrue(off.getFrobeniusNorm() < bound, () -> off.getFrobeniusNorm() + " of at most " + bound);
    }

    @Test
    void sumOverNothing() {
        QuantizedTensor a = matrix(DType.FLOAT8_E4M3, Scaling.TENSOR, 16, 16).tensor;
        Tensor none = open.scope().tensor(DType.BFLOAT16, 0, 16);
        QuantizedTensor empty =
                open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 0, 16).allocateRowwise(open.scope());
        Accumulator fast = Accumulator.FAST;
        ProductPlan plan = ProductPlan.MEASURED;
        MatrixProduct.of(Transpose.NO, Transpose.YES, plan)
                .product(empty, a, none, Output.OVERWRITE, fast, open.stream());
        open.stream().synchronize();
    }

    @Test
    void refusesBlocksWithFastSums() {
        QuantizedTensor a = matrix(DType.FLOAT8_E4M3, Scaling.BLOCK_1D, 16, 16).tensor;
        Tensor d = open.unwritten(DType.BFLOAT16, 16, 16);
        assertThrown(
                IllegalArgumentException.class,
                "accumulator: expected SPLIT, for products of blocks apply a scale each 128 numbers, got FAST",
                () -> MatrixProduct.of(Transpose.NO, Transpose.YES, ProductPlan.FIRST)
                        .product(a, a, d, Output.OVERWRITE, Accumulator.FAST, open.stream()));
    }

    @Test
    void makesNoGarbage() {
        QuantizedTensor a = matrix(DType.FLOAT8_E4M3, Scaling.TENSOR, 16, 32).tensor;
        QuantizedTensor b = matrix(DType.FLOAT8_E4M3, Scaling.TENSOR, 64, 32).tensor;
        Tensor d = open.unwritten(DType.BFLOAT16, 16, 64);
        Tensor bias = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 64, 1), 64);
        Transpose no = Transpose.NO;
        Transpose yes = Transpose.YES;
        ProductPlan plan = ProductPlan.MEASURED;
        Accumulator split = Accumulator.SPLIT;
        Allocation.assertNone("FP8 products", () -> {
            MatrixProduct.of(no, yes, plan).product(a, b, d, Output.OVERWRITE, split, open.stream());
            MatrixProduct.of(no, yes, plan).productBias(a, b, bias, d, split, open.stream());
        });
    }
}
