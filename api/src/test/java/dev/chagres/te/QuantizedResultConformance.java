package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.conformance.Comparison;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.internal.Checks;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.witness.Float8Witness;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.commons.math3.linear.RealMatrix;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Products of {@code Gemm} whose results are eight bits: against double precision, rounded; and what they refuse. */
@Tag("L0")
@Tag("L1")
class QuantizedResultConformance {
    private static final DType E4M3 = DType.FLOAT8_E4M3;
    private static final DType E5M2 = DType.FLOAT8_E5M2;
    /** A number that lies between two of eight bits may go either way. */
    private static final Tolerance ROUNDED = new Tolerance("product in eight bits, its result too", 1e-2, 0.3);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    record Case(
            DType left,
            DType right,
            DType result,
            Transpose transB,
            @Nullable DType bias,
            int m,
            int k,
            int n) {}

    static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (int[] size : new int[][] {{1, 16, 16}, {16, 32, 48}, {64, 64, 64}, {112, 272, 144}}) {
            for (Transpose transB : Transpose.values()) {
                cases.add(new Case(E4M3, E4M3, E4M3, transB, DType.BFLOAT16, size[0], size[1], size[2]));
                cases.add(new Case(E4M3, E4M3, E4M3, transB, DType.FLOAT16, size[0], size[1], size[2]));
                cases.add(new Case(E4M3, E4M3, E4M3, transB, null, size[0], size[1], size[2]));
                cases.add(new Case(E5M2, E4M3, E5M2, transB, null, size[0], size[1], size[2]));
                cases.add(new Case(E5M2, E4M3, E4M3, transB, null, size[0], size[1], size[2]));
            }
        }
        return cases;
    }

    @ParameterizedTest
    @MethodSource("cases")
    void productAndLargestMagnitude(Case c) {
        Float8Matrix a = Float8Matrix.rowwise(open, Scaling.TENSOR, c.left, c.m, c.k);
        Float8Matrix b = c.transB == Transpose.YES
                ? Float8Matrix.rowwise(open, Scaling.TENSOR, c.right, c.n, c.k)
                : Float8Matrix.columnwise(open, Scaling.TENSOR, c.right, c.k, c.n);
        RealMatrix expected =
                a.values().multiply(c.transB == Transpose.YES ? b.values().transpose() : b.values());
        Tensor bias = null;
        double largestBias = 0;
        if (c.bias != null) {
            double[] added = open.normal(c.bias, c.n, 1);
            bias = open.tensor(c.bias, added, c.n);
            largestBias = Arrays.stream(added).map(Math::abs).max().orElseThrow();
            for (int i = 0; i < c.m; i++) {
                for (int j = 0; j < c.n; j++) {
                    expected.addToEntry(i, j, added[j]);
                }
            }
        }
        float scale = 1.5f;
        QuantizedTensor d = Float8Matrix.emptyRowwise(open, c.result, c.m, c.n, scale);
        Gemm.gemm(a.tensor(), Transpose.NO, b.tensor(), c.transB, bias, d, Accumulator.SPLIT, open.stream());
        double[] exact = Comparison.entries(expected);
        double[] rounded = new double[exact.length];
        double largest = 0;
        for (int i = 0; i < exact.length; i++) {
            rounded[i] = Float8Witness.quantized(exact[i], scale, c.result);
            largest = Math.max(largest, Math.abs(exact[i]));
        }
        double[] values = Float8Witness.values(Checks.given("d", d.rowwise()).toBytes(open.stream()), c.result);
        float[] floats = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            floats[i] = (float) values[i];
        }
        open.assertClose("d", rounded, floats, 0, ROUNDED);
        float found = open.read(Checks.given("amax", d.amax()))[0];
        // cuBLASLt counts rows behind the last one, which are the bias alone.
        double most = Provider.current() == Provider.REFERENCE ? largest : Math.max(largest, largestBias);
        assertTrue(found >= 0.99 * largest && found <= 1.01 * most, "amax " + found + " of " + largest);
    }

    private static QuantizedTensor rowwise(DType dtype, long rows, long columns) {
        return open.scope().quantized(Scaling.TENSOR, dtype, rows, columns).allocateRowwise(open.scope());
    }

    private static void refused(String text, QuantizedTensor a, QuantizedTensor b, QuantizedTensor d) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> Gemm.gemm(a, Transpose.NO, b, Transpose.YES, null, d, Accumulator.FAST, open.stream()));
    }

    @Test
    void whatIsRefused() {
        QuantizedTensor a = rowwise(E4M3, 16, 32);
        QuantizedTensor b = rowwise(E4M3, 48, 32);
        refused(
                "b: expected to be summed over 32 numbers as a is, and over some, for a is FLOAT8_E4M3[16, 32] TENSOR, got"
                        + " FLOAT8_E4M3[48, 16] TENSOR",
                a,
                rowwise(E4M3, 48, 16),
                Float8Matrix.emptyRowwise(open, E4M3, 16, 48, 1));
        refused(
                "d: expected [16, 48], got FLOAT8_E4M3[16, 32] TENSOR",
                a,
                b,
                Float8Matrix.emptyRowwise(open, E4M3, 16, 32, 1));
        refused(
                "d: expected a scale, by which TENSOR scaling multiplies, got FLOAT8_E4M3[16, 48] TENSOR without; set it by"
                        + " scale",
                a,
                b,
                rowwise(E4M3, 16, 48));
        refused(
                "d: expected only rowwise data, for a product writes no transpose, got FLOAT8_E4M3[16, 48] TENSOR;"
                        + " make one"
                        + " by Transpose.transpose",
                a,
                b,
                Float8Matrix.empty(open, E4M3, 16, 48, 1));
        refused(
                "d: expected FLOAT8_E4M3, for cuBLASLt has no FLOAT8_E5M2 product of two FLOAT8_E4M3, got"
                        + " FLOAT8_E5M2[16, 48] TENSOR",
                a,
                b,
                Float8Matrix.emptyRowwise(open, E5M2, 16, 48, 1));
        refused(
                "d: expected a multiple of 16 columns, which products store at once, got FLOAT8_E4M3[16, 24] TENSOR; pad b"
                        + " and d to 32",
                a,
                rowwise(E4M3, 24, 32),
                Float8Matrix.emptyRowwise(open, E4M3, 16, 24, 1));
    }
}
