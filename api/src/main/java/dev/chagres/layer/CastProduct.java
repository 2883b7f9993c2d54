package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.te.Gemm;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import org.jspecify.annotations.Nullable;

/**
 * A product that casts its result itself.
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
        Tensor own = pass.temporary().tensor(DType.FLOAT32, 1);
        d.amax(own);
        Gemm.gemm(a, Transpose.NO, b, transB, bias, d, accumulator, pass.stream());
        d.amax(largest);
        LargestMagnitude.raise(largest, own, Checks.given("scale", d.scale()), d.dtype(), pass);
    }
}
