package dev.chagres.internal;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;

/**
 * Checks of the arguments of matrix products.
 *
 * <p>Threading: the device's thread.
 */
public final class ProductChecks {
    private ProductChecks() {}

    /** Checks what all products have in common, and returns K. */
    public static long product(Tensor a, boolean transA, Tensor b, boolean transB, Tensor d, Stream stream) {
        countable("a", Checks.matrix(stream, "a", a));
        countable("b", Checks.matrix(stream, "b", b));
        countable("d", Checks.matrix(stream, "d", d));
        long rows = a.size(!transA ? 0 : 1);
        long inner = a.size(!transA ? 1 : 0);
        long columns = b.size(!transB ? 1 : 0);
        if (b.dtype() != a.dtype() || b.size(!transB ? 0 : 1) != inner) {
            String shape = !transB ? "[" + inner + ", N]" : "[N, " + inner + "], transposed";
            throw new IllegalArgumentException("b: expected " + a.dtype() + shape + ", for a is " + Checks.describe(a)
                    + (!transA ? "" : ", transposed") + ", got " + Checks.describe(b));
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

    private static void written(String argument, Tensor tensor, Tensor a, Tensor b) {
        Checks.written(argument, tensor, "a", a, "b", b);
    }

    public static void countable(String argument, Tensor matrix) {
        if (matrix.size(0) > Integer.MAX_VALUE || matrix.size(1) > Integer.MAX_VALUE) {
            throw new IllegalArgumentException(argument + ": expected at most " + Integer.MAX_VALUE
                    + " rows and columns, which cuBLASLt counts in 32 bits, got " + Checks.describe(matrix));
        }
    }

    /** Refuses K = 0, unless {@code d} has no elements. */
    public static void requireSum(long inner, Tensor a, Tensor d) {
        if (inner == 0 && d.count() != 0) {
            throw new IllegalArgumentException(
                    "a: expected K of at least 1, for a product with a bias, got " + Checks.describe(a));
        }
    }

    /** Checks a bias that is added to each row of {@code d}. */
    public static void bias(Tensor bias, Tensor d, Stream stream) {
        Checks.vector(stream, "bias", bias, d.dtype(), d.size(1));
        Checks.apart("d", d, "bias", bias);
    }

    /** Checks the tensors of a product with a bias and GELU behind it, which also writes {@code preGelu}. */
    public static void biasGelu(Tensor bias, Tensor preGelu, Tensor a, Tensor b, Tensor d, Stream stream) {
        requireSixteenBits(a, d);
        bias(bias, d, stream);
        gelu(preGelu, a, b, d, stream);
        Checks.apart("preGelu", preGelu, "bias", bias);
    }

    /** Checks the tensors of a product with GELU behind it, which also writes {@code preGelu}. */
    public static void gelu(Tensor preGelu, Tensor a, Tensor b, Tensor d, Stream stream) {
        requireSixteenBits(a, d);
        Checks.like(stream, "preGelu", preGelu, d);
        written("preGelu", preGelu, a, b);
        Checks.apart("preGelu", preGelu, "d", d);
    }

    /** Checks the tensors of a product with the gradient of GELU behind it, which reads {@code preGelu}. */
    public static void geluGradient(Tensor preGelu, Tensor a, Tensor d, Stream stream) {
        requireSixteenBits(a, d);
        Checks.like(stream, "preGelu", preGelu, d);
        Checks.apart("d", d, "preGelu", preGelu);
    }

    private static void requireSixteenBits(Tensor a, Tensor d) {
        if (a.dtype() == DType.FLOAT32) {
            throw new IllegalArgumentException(
                    "a: expected FLOAT16 or BFLOAT16, for which cuBLAS has products with GELU, got "
                            + Checks.describe(a) + "; call the product without GELU, then Activation.GELU");
        }
        if (d.dtype() != a.dtype()) {
            throw new IllegalArgumentException(
                    "d: expected the type of a, " + a.dtype() + ", got " + Checks.describe(d));
        }
    }

    /** Checks the tensors of a product that also writes a bias gradient. */
    public static void biasGradient(Tensor dbias, Tensor a, Tensor b, Tensor d, Stream stream) {
        Checks.vector(stream, "dbias", dbias, d.dtype(), d.size(0));
        written("dbias", dbias, a, b);
        Checks.apart("dbias", dbias, "d", d);
        if (dbias.count() != 0 && d.size(1) == 0) {
            throw new IllegalArgumentException(
                    "d: expected at least one column, for the kernel that sums dbias makes d, got "
                            + Checks.describe(d));
        }
    }
}
