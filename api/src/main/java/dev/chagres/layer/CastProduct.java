package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.Cast;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * A product that casts its result itself. cuBLASLt overwrites the largest magnitude of a result, where all other kernels keep a larger
 * one: without more, the last micro-batch of a step would decide the scale alone.
 *
 * <p>Threading: the device's thread.
 */
final class CastProduct {
    private CastProduct() {}

    /**
     * Enqueues {@code d = a op(b) + bias} in eight bits and, where d has an amax, {@code amax = max(amax, max |d|)}.
     *
     * @param d rowwise data alone, with a scale
     */
    static void product(
            QuantizedTensor a,
            QuantizedTensor b,
            Transpose transB,
            @Nullable Tensor bias,
            QuantizedTensor d,
            Accumulator accumulator,
            Pass pass) {
        Tensor largest = d.amax();
        if (largest == null || d.rows() == 0) {
            Gemm.gemm(a, Transpose.NO, b, transB, bias, d, accumulator, pass.stream());
            return;
        }
        Scope temporary = pass.temporary();
        Tensor own = temporary.tensor(DType.FLOAT32, 1, 1);
        d.amax(temporary.view(own, 0, 1));
        Gemm.gemm(a, Transpose.NO, b, transB, bias, d, accumulator, pass.stream());
        d.amax(largest);
        QuantizedTensor unread = temporary
                .quantized(Scaling.TENSOR, d.dtype(), 1, 1)
                .allocateRowwise(temporary)
                .scale(Checks.given("scale", d.scale()))
                .amax(largest);
        Cast.quantize(own, unread, pass.stream()); // A cast keeps the larger magnitude.
    }
}
