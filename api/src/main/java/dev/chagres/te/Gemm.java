package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.ProductChecks;
import dev.chagres.internal.QuantizedProductChecks;
import dev.chagres.internal.memory.DeviceState;
import dev.chagres.internal.memory.WorkListener;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * Matrix products {@code d = op(a) op(b)}, with an optional epilogue in the same kernel: a bias, GELU, its gradient, or the gradient of a
 * bias.
 *
 * <p>Everything is row-major: op(a) is [M, K], op(b) is [K, N], d is [M, N]; op is the matrix itself or its transpose. So the three
 * products of a linear layer are {@code gemm(x, NO, w, YES, y)}, {@code gemm(dy, NO, w, NO, dx)} and {@code gemm(dy, YES, x, NO, dw)}.
 *
 * <p>a and b have one floating-point type, or are FP8 with scales. Sums are FP32, of FP8 numbers as the {@link Accumulator} says.
 * On GPUs products of FLOAT32 use TF32. Outputs overlap no input.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code nvte_cublas_gemm_v2} in TE's {@code gemm.h}.
 */
public final class Gemm {
    /** What op does with a matrix. */
    public enum Transpose {
        /** The matrix itself. */
        NO,
        /** Its transpose. */
        YES;

        int code() {
            return ordinal();
        }
    }

    /** How a product of FP8 numbers accumulates. */
    public enum Accumulator {
        /** In the accumulators of the tensor cores, which keep about 14 bits: faster. */
        FAST,
        /** In FP32 at intervals, so that long sums keep their precision: TE's split accumulator. */
        SPLIT
    }

    private static final DeviceState.Attachment<GemmConfigs> CONFIGS = new DeviceState.Attachment<>(GemmConfigs::new);

    private Gemm() {}

    /**
     * Enqueues {@code d = op(a) op(b)}, or {@code d = d + op(a) op(b)}. With K = 0 the product is 0.
     *
     * @param a [M, K], transposed [K, M]
     * @param b [K, N], transposed [N, K], in the type of a
     * @param d [M, N], FLOAT32 or the type of a; a sum is rounded to that type each time
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or d shares memory with a or b
     */
    public static void gemm(
            Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor d, Output output, Stream stream) {
        Checks.given("output", output);
        long inner = checked(a, transA, b, transB, d, stream);
        if (isOverNothing(inner, d, output, stream)) {
            return;
        }
        DeviceState device = Inside.state(stream);
        MemorySegment beta = output == Output.OVERWRITE ? device.zero() : device.one();
        MemorySegment config = configs(stream).plain(Accumulator.FAST);
        call(a.handle(), transA, b.handle(), transB, d.handle(), beta, config, stream);
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
    public static void gemmBias(
            Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor bias, Tensor d, Stream stream) {
        long inner = checked(a, transA, b, transB, d, stream);
        ProductChecks.bias(bias, d, stream);
        ProductChecks.requireSum(inner, a, d);
        if (d.count() == 0) {
            return;
        }
        GemmConfigs configs = configs(stream);
        call(a.handle(), transA, b.handle(), transB, d.handle(), configs.zero(), configs.bias(bias), stream);
    }

    /**
     * Enqueues {@code preGelu = op(a) op(b) + bias} and {@code d = gelu(preGelu)}, the form with tanh.
     *
     * @param a [M, K], transposed [K, M], K at least 1, FLOAT16 or BFLOAT16: cuBLAS has no such kernel of FLOAT32
     * @param b [K, N], transposed [N, K], in the type of a
     * @param bias [N], in the type of a
     * @param preGelu [M, N], in the type of a, what {@link #gemmGeluGradient} needs
     * @param d [M, N], in the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void gemmBiasGelu(
            Tensor a,
            Transpose transA,
            Tensor b,
            Transpose transB,
            Tensor bias,
            Tensor preGelu,
            Tensor d,
            Stream stream) {
        long inner = checked(a, transA, b, transB, d, stream);
        ProductChecks.biasGelu(bias, preGelu, a, b, d, stream);
        ProductChecks.requireSum(inner, a, d);
        if (d.count() == 0) {
            return;
        }
        GemmConfigs configs = configs(stream);
        call(
                a.handle(),
                transA,
                b.handle(),
                transB,
                d.handle(),
                configs.zero(),
                configs.biasGelu(bias, preGelu),
                stream);
    }

    /**
     * Enqueues {@code preGelu = op(a) op(b)} and {@code d = gelu(preGelu)}, the form with tanh. With K = 0 results are 0.
     *
     * @param a [M, K], transposed [K, M], FLOAT16 or BFLOAT16: cuBLAS has no such kernel of FLOAT32
     * @param b [K, N], transposed [N, K], in the type of a
     * @param preGelu [M, N], in the type of a, what {@link #gemmGeluGradient} needs
     * @param d [M, N], in the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void gemmGelu(
            Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor preGelu, Tensor d, Stream stream) {
        long inner = checked(a, transA, b, transB, d, stream);
        ProductChecks.gelu(preGelu, a, b, d, stream);
        if (isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            preGelu.zero(stream);
            return;
        }
        GemmConfigs configs = configs(stream);
        call(a.handle(), transA, b.handle(), transB, d.handle(), configs.zero(), configs.gelu(preGelu), stream);
    }

    /**
     * Enqueues {@code d = (op(a) op(b)) gelu'(preGelu)}, element by element, the form with tanh.
     *
     * @param a [M, K], transposed [K, M], FLOAT16 or BFLOAT16: cuBLAS has no such kernel of FLOAT32
     * @param b [K, N], transposed [N, K], in the type of a
     * @param preGelu [M, N], in the type of a, what {@link #gemmBiasGelu} or {@link #gemmGelu} wrote
     * @param d [M, N], in the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or d shares memory with another tensor
     */
    public static void gemmGeluGradient(
            Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor preGelu, Tensor d, Stream stream) {
        long inner = checked(a, transA, b, transB, d, stream);
        ProductChecks.geluGradient(preGelu, a, d, stream);
        if (isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            return;
        }
        GemmConfigs configs = configs(stream);
        call(a.handle(), transA, b.handle(), transB, d.handle(), configs.zero(), configs.geluGradient(preGelu), stream);
    }

    /**
     * Enqueues {@code d = a^T op(b)} and {@code dbias[m] = sum over k of a[k, m]}: cuBLASLt can sum dbias only beside a product whose first
     * operand is transposed. The gradients of a weight and its bias are {@code gemmBiasGradient(dy, x, NO, dbias, dw)}. With K = 0 results
     * are 0.
     *
     * @param a [K, M]
     * @param b [K, N], transposed [N, K], in the type of a, N at least 1
     * @param dbias [M], in the type of d
     * @param d [M, N], FLOAT32 or the type of a
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public static void gemmBiasGradient(Tensor a, Tensor b, Transpose transB, Tensor dbias, Tensor d, Stream stream) {
        long inner = checked(a, Transpose.YES, b, transB, d, stream);
        ProductChecks.biasGradient(dbias, a, b, d, stream);
        if (isOverNothing(inner, d, Output.OVERWRITE, stream)) {
            dbias.zero(stream);
            return;
        }
        GemmConfigs configs = configs(stream);
        call(
                a.handle(),
                Transpose.YES,
                b.handle(),
                transB,
                d.handle(),
                configs.zero(),
                configs.biasGradient(dbias),
                stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b)}, or {@code d = d + op(a) op(b)}, of FP8 numbers with their scales. With K = 0 the product is 0.
     *
     * <p>The kernel reads rows of K numbers. So a needs rowwise data, or if transposed columnwise data; b needs columnwise data, or if
     * transposed rowwise data. K is a multiple of 16, and so are the bytes of a row of d.
     *
     * <p>Both are scaled by {@link dev.chagres.Scaling#TENSOR}, or both by blocks, but not both by BLOCK_2D. With block scaling N is a
     * multiple of 8, and so is M if a is scaled by BLOCK_1D.
     *
     * @param a [M, K], transposed [K, M]
     * @param b [K, N], transposed [N, K]; not FLOAT8_E5M2 if a is
     * @param d [M, N], BFLOAT16, FLOAT16 or FLOAT32; a sum is rounded to that type each time
     * @param accumulator SPLIT with block scaling
     * @throws IllegalArgumentException when shapes, types, copies, scalings or devices do not fit, or d shares memory
     */
    public static void gemm(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            Tensor d,
            Output output,
            Accumulator accumulator,
            Stream stream) {
        Checks.given("output", output);
        long inner = checked(a, transA, b, transB, d, accumulator, stream);
        if (isOverNothing(inner, d, output, stream)) {
            return;
        }
        DeviceState device = Inside.state(stream);
        MemorySegment beta = output == Output.OVERWRITE ? device.zero() : device.one();
        MemorySegment config = configs(stream).plain(accumulator);
        call(a.handle(), transA, b.handle(), transB, d.handle(), beta, config, stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b) + bias} of FP8 numbers with their scales, the bias added to every row. What {@link
     * #gemm(QuantizedTensor, Transpose, QuantizedTensor, Transpose, Tensor, Output, Accumulator, Stream)} says of copies, sizes
     * and scalings holds.
     *
     * @param a [M, K], transposed [K, M], K at least 16
     * @param b [K, N], transposed [N, K]; not FLOAT8_E5M2 where a is
     * @param bias [N], in the type of d; BFLOAT16 where d is FLOAT32
     * @param d [M, N], BFLOAT16, FLOAT16 or FLOAT32
     * @param accumulator SPLIT where scaled by blocks
     * @throws IllegalArgumentException when shapes, types, copies, scalings or devices do not fit, or d shares memory
     */
    public static void gemmBias(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            Tensor bias,
            Tensor d,
            Accumulator accumulator,
            Stream stream) {
        long inner = checked(a, transA, b, transB, d, accumulator, stream);
        QuantizedProductChecks.bias(bias, d, stream);
        QuantizedProductChecks.requireSum(inner, a, d);
        if (d.count() == 0) {
            return;
        }
        GemmConfigs configs = configs(stream);
        MemorySegment config = configs.bias(bias, accumulator);
        call(a.handle(), transA, b.handle(), transB, d.handle(), configs.zero(), config, stream);
    }

    /**
     * Enqueues {@code d = op(a) op(b)} of FP8 numbers with their scales, quantized to eight bits: {@code d} stores the product times its
     * scale, and its amax, if it has one, receives the largest magnitude before scaling. With fewer rows than the kernel's tile, the amax
     * is at least the largest magnitude of the bias. What {@link #gemm(QuantizedTensor, Transpose, QuantizedTensor, Transpose, Tensor,
     * Output, Accumulator, Stream)} says of copies and sizes holds here.
     *
     * @param a [M, K], transposed [K, M], K at least 16; scaled by {@link dev.chagres.Scaling#TENSOR}, like all here
     * @param b [K, N], transposed [N, K]; not FLOAT8_E5M2 where a is
     * @param bias [N], BFLOAT16 or FLOAT16, added to every row; null: none
     * @param d [M, N], rowwise data alone, with a scale; FLOAT8_E4M3, or FLOAT8_E5M2 where a or b is
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or d shares memory with another
     */
    public static void gemm(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            @Nullable Tensor bias,
            QuantizedTensor d,
            Accumulator accumulator,
            Stream stream) {
        Checks.given("transA", transA, "transB", transB, "accumulator", accumulator);
        QuantizedProductChecks.quantized(a, transA == Transpose.YES, b, transB == Transpose.YES, bias, d, stream);
        if (d.rows() == 0 || d.columns() == 0) {
            return;
        }
        GemmConfigs configs = configs(stream);
        MemorySegment config = bias == null ? configs.plain(accumulator) : configs.bias(bias, accumulator);
        call(a.handle(), transA, b.handle(), transB, d.handle(), configs.zero(), config, stream);
    }

    /** Returns whether there is nothing to multiply; if K = 0, sets d to 0. */
    private static boolean isOverNothing(long inner, Tensor d, Output output, Stream stream) {
        if (inner == 0 && d.count() != 0 && output == Output.OVERWRITE) {
            d.zero(stream);
        }
        return inner == 0 || d.count() == 0;
    }

    private static GemmConfigs configs(Stream stream) {
        return Inside.state(stream).get(CONFIGS).current();
    }

    /** Checks what all products have in common, and returns K. */
    private static long checked(Tensor a, Transpose transA, Tensor b, Transpose transB, Tensor d, Stream stream) {
        Checks.given("transA", transA, "transB", transB);
        long inner = ProductChecks.product(a, transA == Transpose.YES, b, transB == Transpose.YES, d, stream);
        tell(transA, transB, d, inner, a.dtype(), stream);
        return inner;
    }

    /** Checks what all products of FP8 numbers have in common, and returns K. */
    private static long checked(
            QuantizedTensor a,
            Transpose transA,
            QuantizedTensor b,
            Transpose transB,
            Tensor d,
            Accumulator accumulator,
            Stream stream) {
        Checks.given("transA", transA, "transB", transB);
        boolean split = Checks.given("accumulator", accumulator) == Accumulator.SPLIT;
        long inner = QuantizedProductChecks.product(
                a, transA == Transpose.YES, b, transB == Transpose.YES, d, split, stream);
        tell(transA, transB, d, inner, a.dtype(), stream);
        return inner;
    }

    private static void tell(Transpose transA, Transpose transB, Tensor d, long inner, DType dtype, Stream stream) {
        WorkListener listener = Inside.state(stream).workListener();
        if (listener != null) {
            boolean forward = transA == Transpose.NO && transB == Transpose.YES;
            WorkListener.Form form = forward ? WorkListener.Form.FORWARD : WorkListener.Form.GRADIENT;
            listener.product(form, d.size(0), d.size(1), inner, Byte.SIZE * dtype.byteSize());
        }
    }

    /** cuBLAS is column-major, and reads a row-major matrix as its transpose; so the product's operands are exchanged. */
    private static void call(
            MemorySegment a,
            Transpose transA,
            MemorySegment b,
            Transpose transB,
            MemorySegment d,
            MemorySegment beta,
            MemorySegment config,
            Stream stream) {
        Status.te(
                TransformerEngine.te_cublas_gemm_v2(
                        transB.code(),
                        transA.code(),
                        Inside.state(stream).one(),
                        b,
                        a,
                        beta,
                        d,
                        d,
                        Inside.workspace(stream).products(),
                        config,
                        stream.handle()),
                "te_cublas_gemm_v2");
    }
}
