package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ProductChecks;
import dev.chagres.internal.QuantizedProductChecks;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;

/**
 * Checks of the arguments that all matrix products have in common.
 *
 * <p>Threading: the device's thread.
 */
final class MatrixProductChecks {
    private MatrixProductChecks() {}

    /** Checks what all products have in common, and returns K. */
    static long product(
            Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor d, ProductPlan plan, Stream stream) {
        Checks.given("transA", transA);
        Checks.given("transB", transB);
        Checks.given("plan", plan);
        return ProductChecks.product(a, transA == Transpose.YES, b, transB == Transpose.YES, d, stream);
    }

    static long product(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            Tensor d,
            Accumulator accumulator,
            ProductPlan plan,
            Stream stream) {
        Checks.given("transA", transA);
        Checks.given("transB", transB);
        Checks.given("accumulator", accumulator);
        Checks.given("plan", plan);
        boolean split = accumulator == Accumulator.SPLIT;
        return QuantizedProductChecks.product(a, transA == Transpose.YES, b, transB == Transpose.YES, d, split, stream);
    }

    /** Returns whether there is nothing to multiply; if K = 0, sets d to 0. */
    static boolean isOverNothing(long inner, Tensor d, Output output, Stream stream) {
        Checks.given("output", output);
        if (inner == 0 && d.count() != 0 && output == Output.OVERWRITE) {
            d.zero(stream);
        }
        return inner == 0 || d.count() == 0;
    }
}
