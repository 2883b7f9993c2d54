package dev.chagres.te;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.internal.Inside;
import java.lang.foreign.MemorySegment;

/**
 * The call of a matrix product over checked operands.
 *
 * <p>Threading: the device's thread.
 */
final class GemmCalls {
    private GemmCalls() {}

    /** cuBLAS is column-major, and reads a row-major matrix as its transpose; so the product's operands are exchanged. */
    static void call(
            MemorySegment a,
            Gemm.Transpose transA,
            MemorySegment b,
            Gemm.Transpose transB,
            Tensor d,
            MemorySegment beta,
            MemorySegment config,
            Stream stream) {
        call(a, transA, b, transB, d.handle(), beta, config, stream);
    }

    /** {@code destination}: handle of the result. */
    static void call(
            MemorySegment a,
            Gemm.Transpose transA,
            MemorySegment b,
            Gemm.Transpose transB,
            MemorySegment destination,
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
                        destination,
                        destination,
                        Inside.workspace(stream).products(),
                        config,
                        stream.handle()),
                "te_cublas_gemm_v2");
    }
}
