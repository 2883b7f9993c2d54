package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.ProductChecks;
import dev.chagres.internal.QuantizedProductChecks;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;

/**
 * The matrix products {@code d = op(a) op(b)} of {@link Gemm} with less host time, since cuBLASLt's heuristic is asked once per kind of
 * product rather than in each call, and with a {@link ProductPlan}, which may be faster than {@link Gemm}'s kernel.
 *
 * <p>Everything is row-major: op(a) is [M, K], op(b) is [K, N], d is [M, N]; op is the matrix itself or its transpose. a and b have one
 * floating-point type, or are FP8 with scales. Sums are FP32, of FP8 numbers as the {@link Gemm.Accumulator} says. On GPUs products of
 * FLOAT32 use TF32. Outputs overlap no input.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_matrix_product} in {@code ops.h}.
 */
public final class MatrixProduct {
    private MatrixProduct() {}

    /**
     * Enqueues {@code d = op(a) op(b)}, or {@code d = d + op(a) op(b)}. With K = 0 the product is 0.
     *
     * @param a [M, K], transposed [K, M]
     * @param b [K, N], transposed [N, K], in the type of a
     * @param d [M, N], FLOAT32 or the type of a; a sum is rounded to that type each time
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or d shares memory with a or b
     */
    public static void product(
            Tensor a,
            Transpose transA,
            Tensor b,
            Transpose transB,
            Tensor d,
            Output output,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, plan, stream);
        if (MatrixProductChecks.isOverNothing(inner, d, output, stream)) {
            return;
        }
        MatrixProductStruct.of(a, transA, b, transB, inner, stream)
                .output(output)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b) + bias}, the bias added to every row.
     *
     * @param a [M, K], transposed [K, M], K at least 1
     * @param b [K, N], transposed [N, K], in the type of a
     * @param bias [N], in the type of d
     * @param d [M, N], FLOAT32 or the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or d shares memory with another tensor
     */
    public static void productBias(
            Tensor a,
            Transpose transA,
            Tensor b,
            Transpose transB,
            Tensor bias,
            Tensor d,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, plan, stream);
        ProductChecks.bias(bias, d, stream);
        ProductChecks.requireSum(inner, a, d);
        MatrixProductStruct.of(a, transA, b, transB, inner, stream).bias(bias).enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code preGelu = op(a) op(b) + bias} and {@code d = gelu(preGelu)}, the form with tanh.
     *
     * @param a [M, K], transposed [K, M], K at least 1, FLOAT16 or BFLOAT16
     * @param b [K, N], transposed [N, K], in the type of a
     * @param bias [N], in the type of a
     * @param preGelu [M, N], in the type of a, what {@link #productGeluGradient} needs
     * @param d [M, N], in the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void productBiasGelu(
            Tensor a,
            Transpose transA,
            Tensor b,
            Transpose transB,
            Tensor bias,
            Tensor preGelu,
            Tensor d,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, plan, stream);
        ProductChecks.biasGelu(bias, preGelu, a, b, d, stream);
        ProductChecks.requireSum(inner, a, d);
        MatrixProductStruct.of(a, transA, b, transB, inner, stream)
                .biasGelu(bias, preGelu)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code preGelu = op(a) op(b)} and {@code d = gelu(preGelu)}, the form with tanh. With K = 0 results are 0.
     *
     * @param a [M, K], transposed [K, M], FLOAT16 or BFLOAT16
     * @param b [K, N], transposed [N, K], in the type of a
     * @param preGelu [M, N], in the type of a, what {@link #productGeluGradient} needs
     * @param d [M, N], in the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void productGelu(
            Tensor a,
            Transpose transA,
            Tensor b,
            Transpose transB,
            Tensor preGelu,
            Tensor d,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, plan, stream);
        ProductChecks.gelu(preGelu, a, b, d, stream);
        if (MatrixProductChecks.isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            preGelu.zero(stream);
            return;
        }
        MatrixProductStruct.of(a, transA, b, transB, inner, stream)
                .gelu(preGelu)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code d = (op(a) op(b)) gelu'(preGelu)}, element by element, the form with tanh.
     *
     * @param a [M, K], transposed [K, M], FLOAT16 or BFLOAT16
     * @param b [K, N], transposed [N, K], in the type of a
     * @param preGelu [M, N], in the type of a, what {@link #productBiasGelu} or {@link #productGelu} wrote
     * @param d [M, N], in the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or d shares memory with another tensor
     */
    public static void productGeluGradient(
            Tensor a,
            Transpose transA,
            Tensor b,
            Transpose transB,
            Tensor preGelu,
            Tensor d,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, plan, stream);
        ProductChecks.geluGradient(preGelu, a, d, stream);
        if (MatrixProductChecks.isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            return;
        }
        MatrixProductStruct.of(a, transA, b, transB, inner, stream)
                .geluGradient(preGelu)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code d = a^T op(b)} and {@code dbias[m] = sum over k of a[k, m]}. With K = 0 results are 0.
     *
     * @param a [K, M]
     * @param b [K, N], transposed [N, K], in the type of a, N at least 1
     * @param dbias [M], in the type of d
     * @param d [M, N], FLOAT32 or the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void productBiasGradient(
            Tensor a, Tensor b, Transpose transB, Tensor dbias, Tensor d, ProductPlan plan, Stream stream) {
        long inner = MatrixProductChecks.product(a, Transpose.YES, b, transB, d, plan, stream);
        ProductChecks.biasGradient(dbias, a, b, d, stream);
        if (MatrixProductChecks.isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            dbias.zero(stream);
            return;
        }
        MatrixProductStruct.of(a, Transpose.YES, b, transB, inner, stream)
                .biasGradient(dbias)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b)}, or {@code d = d + op(a) op(b)}, of FP8 numbers with their scales. What {@link
     * Gemm#gemm(QuantizedTensor, Transpose, QuantizedTensor, Transpose, Tensor, Output, Accumulator, Stream)} says of copies,
     * sizes and scalings holds.
     *
     * @param a [M, K], transposed [K, M]
     * @param b [K, N], transposed [N, K]; not FLOAT8_E5M2 where a is
     * @param d [M, N], BFLOAT16, FLOAT16 or FLOAT32; a sum is rounded to that type each time
     * @param accumulator SPLIT where scaled by blocks
     * @throws IllegalArgumentException when shapes, types, copies, scalings or devices do not fit, or d shares memory
     */
    public static void product(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            Tensor d,
            Output output,
            Accumulator accumulator,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, accumulator, plan, stream);
        if (MatrixProductChecks.isOverNothing(inner, d, output, stream)) {
            return;
        }
        MatrixProductStruct.of(a, transA, b, transB, inner, accumulator, stream)
                .output(output)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b) + bias} of FP8 numbers with their scales, the bias added to every row. What {@link
     * Gemm#gemm(QuantizedTensor, Transpose, QuantizedTensor, Transpose, Tensor, Output, Accumulator, Stream)} says of copies,
     * sizes and scalings holds.
     *
     * @param a [M, K], transposed [K, M], K at least 16
     * @param b [K, N], transposed [N, K]; not FLOAT8_E5M2 where a is
     * @param bias [N], in the type of d; BFLOAT16 where d is FLOAT32
     * @param d [M, N], BFLOAT16, FLOAT16 or FLOAT32
     * @param accumulator SPLIT where scaled by blocks
     * @throws IllegalArgumentException when shapes, types, copies, scalings or devices do not fit, or d shares memory
     */
    public static void productBias(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            Tensor bias,
            Tensor d,
            Accumulator accumulator,
            ProductPlan plan,
            Stream stream) {
        long inner = MatrixProductChecks.product(a, transA, b, transB, d, accumulator, plan, stream);
        QuantizedProductChecks.bias(bias, d, stream);
        QuantizedProductChecks.requireSum(inner, a, d);
        MatrixProductStruct.of(a, transA, b, transB, inner, accumulator, stream)
                .bias(bias)
                .enqueue(d, plan, stream);
    }
}
