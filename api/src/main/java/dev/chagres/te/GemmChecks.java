package dev.chagres.te;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ProductChecks;
import dev.chagres.internal.QuantizedProductChecks;

/**
 * Checks of the arguments that matrix products have in common.
 *
 * <p>Threading: the device's thread.
 */
final class GemmChecks {
    private GemmChecks() {}

    /** Checks what all products have in common, and returns K. */
    static long product(Tensor a, Gemm.Transpose transA, Tensor b, Gemm.Transpose transB, Tensor d, Stream stream) {
        Checks.given("transA", transA);
        Checks.given("transB", transB);
        return ProductChecks.product(a, transA == Gemm.Transpose.YES, b, transB == Gemm.Transpose.YES, d, stream);
    }

    /** Checks what all products of FP8 numbers have in common, and returns K. */
    static long product(
            QuantizedTensor a,
            Gemm.Transpose transA,
            QuantizedTensor b,
            Gemm.Transpose transB,
            Tensor d,
            Gemm.Accumulator accumulator,
            Stream stream) {
        Checks.given("transA", transA);
        Checks.given("transB", transB);
        Checks.given("accumulator", accumulator);
        return QuantizedProductChecks.product(
                a,
                transA == Gemm.Transpose.YES,
                b,
                transB == Gemm.Transpose.YES,
                d,
                accumulator == Gemm.Accumulator.SPLIT,
                stream);
    }
}
