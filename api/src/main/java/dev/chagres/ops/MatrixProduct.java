package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.ProductChecks;
import dev.chagres.internal.QuantizedProductChecks;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.List;

/**
 * The matrix products {@code d = op(a) op(b)} of {@link Gemm} with less host time: cuBLASLt's heuristic is asked once per kind of product
 * rather than in each call. A {@link ProductPlan} may choose a kernel that is faster than {@link Gemm}'s.
 *
 * <p>Everything is row-major: op(a) is [M, K], op(b) is [K, N], d is [M, N]; op is the matrix itself or its transpose. a and b have one
 * floating-point type, or are FP8 with scales. Sums are FP32, of FP8 numbers as the {@link Gemm.Accumulator} says. On GPUs products of
 * FLOAT32 use TF32. Outputs overlap no input.
 *
 * <p>Threading: immutable; its products belong to the device's thread.
 *
 * <p>Source: {@code ops_matrix_product} in {@code ops.h}.
 *
 * @param transA whether op(a) is the transpose of a
 * @param transB whether op(b) is the transpose of b
 * @param plan how the kernel is chosen
 */
public record MatrixProduct(Transpose transA, Transpose transB, ProductPlan plan) {
    private static final List<MatrixProduct> ALL = all();

    /** Makes a kind of product. */
    public MatrixProduct {
        Checks.given("transA", transA, "transB", transB, "plan", plan);
    }

    /** Returns the same object each time. */
    public static MatrixProduct of(Transpose transA, Transpose transB, ProductPlan plan) {
        int operands = 2 * Checks.given("transA", transA).ordinal()
                + Checks.given("transB", transB).ordinal();
        return ALL.get(2 * operands + Checks.given("plan", plan).ordinal());
    }

    private static List<MatrixProduct> all() {
        List<MatrixProduct> all = new ArrayList<>();
        for (Transpose transA : Transpose.values()) {
            for (Transpose transB : Transpose.values()) {
                for (ProductPlan plan : ProductPlan.values()) {
                    all.add(new MatrixProduct(transA, transB, plan));
                }
            }
        }
        return List.copyOf(all);
    }

    /**
     * Enqueues {@code d = op(a) op(b)}, or {@code d = d + op(a) op(b)}. With K = 0 the product is 0.
     *
     * @param a [M, K], transposed [K, M]
     * @param b [K, N], transposed [N, K], in the type of a
     * @param d [M, N], FLOAT32 or the type of a; a sum is rounded to that type each time
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or d shares memory with a or b
     */
    public void product(Tensor a, Tensor b, Tensor d, Output output, Stream stream) {
        long inner = checked(a, b, d, stream);
        if (isOverNothing(inner, d, output, stream)) {
            return;
        }
        MatrixProductStruct.of(this, a, b, inner, stream).output(output).enqueue(d, plan, stream);
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
    public void productBias(Tensor a, Tensor b, Tensor bias, Tensor d, Stream stream) {
        long inner = checked(a, b, d, stream);
        ProductChecks.bias(bias, d, stream);
        ProductChecks.requireSum(inner, a, d);
        MatrixProductStruct.of(this, a, b, inner, stream)
                .epilogue(Ops.OPS_EPILOGUE_BIAS(), bias, null)
                .enqueue(d, plan, stream);
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
    public void productBiasGelu(Tensor a, Tensor b, Tensor bias, Tensor preGelu, Tensor d, Stream stream) {
        long inner = checked(a, b, d, stream);
        ProductChecks.biasGelu(bias, preGelu, a, b, d, stream);
        ProductChecks.requireSum(inner, a, d);
        MatrixProductStruct.of(this, a, b, inner, stream)
                .epilogue(Ops.OPS_EPILOGUE_BIAS_GELU(), bias, preGelu)
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
    public void productGelu(Tensor a, Tensor b, Tensor preGelu, Tensor d, Stream stream) {
        long inner = checked(a, b, d, stream);
        ProductChecks.gelu(preGelu, a, b, d, stream);
        if (isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            preGelu.zero(stream);
            return;
        }
        MatrixProductStruct.of(this, a, b, inner, stream)
                .epilogue(Ops.OPS_EPILOGUE_GELU(), null, preGelu)
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
    public void productGeluGradient(Tensor a, Tensor b, Tensor preGelu, Tensor d, Stream stream) {
        long inner = checked(a, b, d, stream);
        ProductChecks.geluGradient(preGelu, a, d, stream);
        if (isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            return;
        }
        MatrixProductStruct.of(this, a, b, inner, stream)
                .epilogue(Ops.OPS_EPILOGUE_GELU_GRADIENT(), null, preGelu)
                .enqueue(d, plan, stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b)} and {@code dbias[m] = sum over k of op(a)[m, k]}, for a transposed a. With K = 0 results are 0.
     *
     * @param a transposed, [K, M]
     * @param b [K, N], transposed [N, K], in the type of a, N at least 1
     * @param dbias [M], in the type of d
     * @param d [M, N], FLOAT32 or the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public void productBiasGradient(Tensor a, Tensor b, Tensor dbias, Tensor d, Stream stream) {
        if (transA == Transpose.NO) {
            throw new IllegalArgumentException(
                    "transA: expected YES, for the kernel that sums dbias reads columns of a, got NO");
        }
        long inner = checked(a, b, d, stream);
        ProductChecks.biasGradient(dbias, a, b, d, stream);
        if (isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            dbias.zero(stream);
            return;
        }
        MatrixProductStruct.of(this, a, b, inner, stream)
                .epilogue(Ops.OPS_EPILOGUE_BIAS_GRADIENT(), dbias, null)
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
    public void product(
            QuantizedTensor a, QuantizedTensor b, Tensor d, Output output, Accumulator accumulator, Stream stream) {
        long inner = checked(a, b, d, accumulator, stream);
        if (isOverNothing(inner, d, output, stream)) {
            return;
        }
        MatrixProductStruct.of(this, a, b, inner, accumulator, stream)
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
    public void productBias(
            QuantizedTensor a, QuantizedTensor b, Tensor bias, Tensor d, Accumulator accumulator, Stream stream) {
        long inner = checked(a, b, d, accumulator, stream);
        QuantizedProductChecks.bias(bias, d, stream);
        QuantizedProductChecks.requireSum(inner, a, d);
        MatrixProductStruct.of(this, a, b, inner, accumulator, stream)
                .epilogue(Ops.OPS_EPILOGUE_BIAS(), bias, null)
                .enqueue(d, plan, stream);
    }

    /** Checks what all products have in common, and returns K. */
    private long checked(Tensor a, Tensor b, Tensor d, Stream stream) {
        return ProductChecks.product(a, transA == Transpose.YES, b, transB == Transpose.YES, d, stream);
    }

    private long checked(QuantizedTensor a, QuantizedTensor b, Tensor d, Accumulator accumulator, Stream stream) {
        boolean split = Checks.given("accumulator", accumulator) == Accumulator.SPLIT;
        return QuantizedProductChecks.product(a, transA == Transpose.YES, b, transB == Transpose.YES, d, split, stream);
    }

    /** Returns whether there is nothing to multiply; if K = 0, sets d to 0. */
    private static boolean isOverNothing(long inner, Tensor d, Output output, Stream stream) {
        Checks.given("output", output);
        if (inner == 0 && d.count() != 0 && output == Output.OVERWRITE) {
            d.zero(stream);
        }
        return inner == 0 || d.count() == 0;
    }
}
