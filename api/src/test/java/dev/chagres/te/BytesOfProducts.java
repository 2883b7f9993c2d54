package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.te.TransformerEngine;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.internal.Inside;
import dev.chagres.te.ComputedBytes.Case;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.HandleArrays.UnsetTensor;
import java.lang.foreign.MemorySegment;

/** Products of FP8 numbers: plain, with a bias, to eight bits, scaled by blocks. */
final class BytesOfProducts {
    private static final float SCALE = 100;
    private static final int ROWS = 48;
    private static final int COLUMNS = 64;
    private static final int INNER = 272;

    private final ComputedBytes computed;
    private final OpenDevice open;

    private BytesOfProducts(ComputedBytes computed) {
        this.computed = computed;
        open = computed.open();
    }

    static void compute(ComputedBytes computed) {
        BytesOfProducts products = new BytesOfProducts(computed);
        for (DType result : new DType[] {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16}) {
            for (Accumulator accumulator : Accumulator.values()) {
                products.plain(result, accumulator);
            }
            products.olderForms(result);
        }
        products.withBias(DType.BFLOAT16);
        products.withBias(DType.FLOAT16);
        products.toQuantized();
        products.byBlocks();
    }

    private QuantizedTensor factor(DType type, int rows, int columns) {
        QuantizedTensor factor = computed.rowwise(type, rows, columns, SCALE);
        Cast.quantize(computed.normal(DType.BFLOAT16, rows, columns), factor, open.stream());
        return factor;
    }

    private QuantizedTensor a() {
        return factor(DType.FLOAT8_E4M3, ROWS, INNER);
    }

    private QuantizedTensor b() {
        return factor(DType.FLOAT8_E5M2, COLUMNS, INNER);
    }

    private void plain(DType result, Accumulator accumulator) {
        computed.call("nvte_cublas_gemm_v2", result + "-" + accumulator, () -> {
            Tensor d = open.unwritten(result, ROWS, COLUMNS);
            Gemm.gemm(a(), Gemm.Transpose.NO, b(), Gemm.Transpose.YES, d, Output.OVERWRITE, accumulator, open.stream());
            computed.keep("d", ByteRule.SUMMED, d);
        });
    }

    private void withBias(DType result) {
        computed.call("nvte_cublas_gemm_v2", result + "-bias", () -> {
            Tensor d = open.unwritten(result, ROWS, COLUMNS);
            Tensor bias = computed.tensor(result, open.normal(result, COLUMNS, 5), COLUMNS);
            Gemm.gemmBias(a(), Gemm.Transpose.NO, b(), Gemm.Transpose.YES, bias, d, Accumulator.SPLIT, open.stream());
            computed.keep("d", ByteRule.SUMMED, d);
        });
    }

    private void toQuantized() {
        computed.call("nvte_cublas_gemm_v2", "to eight bits", () -> {
            QuantizedTensor d = computed.rowwise(DType.FLOAT8_E4M3, ROWS, COLUMNS, 4);
            QuantizedTensor b = factor(DType.FLOAT8_E4M3, COLUMNS, INNER);
            Gemm.gemm(a(), Gemm.Transpose.NO, b, Gemm.Transpose.YES, null, d, Accumulator.SPLIT, open.stream());
            computed.keep("d", ByteRule.SUMMED, ByteRule.SUMMED, d);
        });
    }

    private void byBlocks() {
        computed.call("nvte_cublas_gemm_v2", new Case(DType.BFLOAT16, DType.FLOAT8_E4M3, ROWS, COLUMNS), () -> {
            Tensor d = open.unwritten(DType.BFLOAT16, ROWS, COLUMNS);
            Gemm.gemm(
                    blocks(Scaling.BLOCK_1D, ROWS),
                    Gemm.Transpose.NO,
                    blocks(Scaling.BLOCK_2D, COLUMNS),
                    Gemm.Transpose.YES,
                    d,
                    Output.OVERWRITE,
                    Accumulator.SPLIT,
                    open.stream());
            computed.keep("d", ByteRule.SUMMED, d);
        });
    }

    private QuantizedTensor blocks(Scaling scaling, int rows) {
        QuantizedTensor factor =
                open.scope().quantized(scaling, DType.FLOAT8_E4M3, rows, INNER).allocateRowwise(open.scope());
        Cast.quantize(computed.normal(DType.BFLOAT16, rows, INNER), factor, open.stream());
        return factor;
    }

    /** TE counts columns first: there the second factor is transposed and comes first. */
    private void olderForms(DType result) {
        computed.call("nvte_cublas_gemm", result, () -> {
            Tensor d = open.unwritten(result, ROWS, COLUMNS);
            MemorySegment a = b().handle();
            MemorySegment b = a().handle();
            Status.te(
                    TransformerEngine.te_cublas_gemm(
                            a,
                            b,
                            d.handle(),
                            unset(),
                            unset(),
                            true,
                            false,
                            false,
                            workspace(),
                            false,
                            true,
                            0,
                            stream()),
                    "te_cublas_gemm");
            computed.keep("d", ByteRule.SUMMED, d);
        });
        computed.call("nvte_cublas_gemm_scaled", result, () -> {
            Tensor d = open.unwritten(result, ROWS, COLUMNS);
            MemorySegment a = b().handle();
            MemorySegment b = a().handle();
            Status.te(
                    TransformerEngine.te_cublas_gemm_scaled(
                            a,
                            b,
                            d.handle(),
                            unset(),
                            unset(),
                            true,
                            false,
                            false,
                            workspace(),
                            0.5f,
                            0,
                            true,
                            0,
                            stream()),
                    "te_cublas_gemm_scaled");
            computed.keep("d", ByteRule.SUMMED, d);
        });
    }

    private MemorySegment unset() {
        return Inside.state(open.stream()).get(UnsetTensor.ATTACHMENT).handle;
    }

    private MemorySegment workspace() {
        return Inside.workspace(open.stream()).products();
    }

    private MemorySegment stream() {
        return open.stream().handle();
    }
}
