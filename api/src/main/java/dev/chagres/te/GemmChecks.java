package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;

/**
 * Checks of the arguments of matrix products.
 *
 * <p>Threading: the device's thread.
 */
final class GemmChecks {
    private GemmChecks() {}

    /** Checks what all products have in common, and returns K. */
    static long product(Tensor a, Gemm.Transpose transA, Tensor b, Gemm.Transpose transB, Tensor d, Stream stream) {
        Checks.given("transA", transA);
        Checks.given("transB", transB);
        countable("a", Checks.matrix(stream, "a", a));
        countable("b", Checks.matrix(stream, "b", b));
        countable("d", Checks.matrix(stream, "d", d));
        long rows = a.size(transA == Gemm.Transpose.NO ? 0 : 1);
        long inner = a.size(transA == Gemm.Transpose.NO ? 1 : 0);
        long columns = b.size(transB == Gemm.Transpose.NO ? 1 : 0);
        if (b.dtype() != a.dtype() || b.size(transB == Gemm.Transpose.NO ? 0 : 1) != inner) {
            String shape = transB == Gemm.Transpose.NO ? "[" + inner + ", N]" : "[N, " + inner + "], transposed";
            throw new IllegalArgumentException("b: expected " + a.dtype() + shape + ", for a is " + Checks.describe(a)
                    + (transA == Gemm.Transpose.NO ? "" : ", transposed") + ", got " + Checks.describe(b));
        }
        if (d.size(0) != rows || d.size(1) != columns) {
            throw new IllegalArgumentException(
                    "d: expected [" + rows + ", " + columns + "], got " + Checks.describe(d));
        }
        if (d.dtype() != DType.FLOAT32 && d.dtype() != a.dtype()) {
            throw new IllegalArgumentException(
                    "d: expected FLOAT32 or the type of a, " + a.dtype() + ", got " + Checks.describe(d));
        }
        written("d", d, a, b);
        return inner;
    }

    static void written(String argument, Tensor tensor, Tensor a, Tensor b) {
        Checks.writable(argument, tensor);
        Checks.apart(argument, tensor, "a", a);
        Checks.apart(argument, tensor, "b", b);
    }

    static void countable(String argument, Tensor matrix) {
        if (matrix.size(0) > Integer.MAX_VALUE || matrix.size(1) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(argument + ": expected at most " + Integer.MAX_VALUE
                    + " rows and columns, which TE counts in 32 bits, got " + Checks.describe(matrix));
        }
    }

    static void requireSum(long inner, Tensor a) {
        if (inner == 0) {
            throw new IllegalArgumentException(
                    "a: expected something to sum over, for a product that is followed by a bias, got "
                            + Checks.describe(a));
        }
    }

    static void requireSixteenBits(Tensor a, Tensor d) {
        if (a.dtype() == DType.FLOAT32) {
            throw new IllegalArgumentException(
                    "a: expected FLOAT16 or BFLOAT16, for which cuBLAS has products with GELU," + " got "
                            + Checks.describe(a) + "; call gemm and Activation.GELU");
        }
        if (d.dtype() != a.dtype()) {
            throw new IllegalArgumentException(
                    "d: expected the type of a, " + a.dtype() + ", got " + Checks.describe(d));
        }
    }
}
