package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Gemm.Accumulator;
import dev.chagres.te.Gemm.Transpose;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The texts of what FP8 products refuse: which copy is missing, which size to pad, which scalings do not go together. */
@Tag("L0")
@Tag("L1")
class QuantizedGemmMisuseTest {
    private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
    private static final Transpose NO = Transpose.NO;
    private static final Transpose YES = Transpose.YES;
    private static final DType E4M3 = DType.FLOAT8_E4M3;
    private static final DType E5M2 = DType.FLOAT8_E5M2;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor of(DType dtype, long... sizes) {
        return open.scope().tensor(dtype, Shape.of(sizes));
    }

    private static QuantizedTensor rowwise(Scaling scaling, DType dtype, long rows, long columns) {
        return open.scope().quantized(scaling, dtype, rows, columns).allocateRowwise(open.scope());
    }

    private static QuantizedTensor columnwise(Scaling scaling, DType dtype, long rows, long columns) {
        return open.scope().quantized(scaling, dtype, rows, columns).allocateColumnwise(open.scope());
    }

    private static void refused(
            String text, QuantizedTensor a, Transpose transA, QuantizedTensor b, Transpose transB, Tensor d) {
        assertThrown(
                ARGUMENT,
                text,
                () -> Gemm.gemm(a, transA, b, transB, d, Output.OVERWRITE, Accumulator.SPLIT, open.stream()));
    }

    @Test
    void theCopyThatAFlagNeeds() {
        QuantizedTensor row = rowwise(Scaling.TENSOR, E4M3, 16, 32);
        QuantizedTensor column = columnwise(Scaling.TENSOR, E4M3, 16, 32);
        Tensor d = of(DType.BFLOAT16, 16, 16);
        String columnwise = "got FLOAT8_E4M3[16, 32] TENSOR without; set it by columnwise or allocateColumnwise";
        String rowwise = "got FLOAT8_E4M3[16, 32] TENSOR without; set it by rowwise or allocateRowwise";
        refused("a: expected rowwise data, for op(a) takes it as it is, " + rowwise, column, NO, row, YES, d);
        refused("a: expected columnwise data, for op(a) takes its transpose, " + columnwise, row, YES, row, NO, d);
        refused("b: expected columnwise data, for op(b) takes it as it is, " + columnwise, row, NO, row, NO, d);
        refused("b: expected rowwise data, for op(b) takes its transpose, " + rowwise, row, NO, column, YES, d);
    }

    @Test
    void shapes() {
        QuantizedTensor a = rowwise(Scaling.TENSOR, E4M3, 16, 32);
        refused(
                "b: expected [N, 32], transposed, for a is FLOAT8_E4M3[16, 32] TENSOR, got FLOAT8_E4M3[8, 64] TENSOR",
                a,
                NO,
                rowwise(Scaling.TENSOR, E4M3, 8, 64),
                YES,
                of(DType.BFLOAT16, 16, 8));
        refused(
                "b: expected [48, N], for a is FLOAT8_E4M3[48, 16] TENSOR, transposed, got FLOAT8_E4M3[32, 8] TENSOR",
                columnwise(Scaling.TENSOR, E4M3, 48, 16),
                YES,
                columnwise(Scaling.TENSOR, E4M3, 32, 8),
                NO,
                of(DType.BFLOAT16, 16, 8));
        QuantizedTensor b = rowwise(Scaling.TENSOR, E4M3, 8, 32);
        refused("d: expected [16, 8], got BFLOAT16[8, 16]", a, NO, b, YES, of(DType.BFLOAT16, 8, 16));
        refused(
                "d: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT8_E4M3[16, 8]",
                a,
                NO,
                b,
                YES,
                of(E4M3, 16, 8));
    }

    @Test
    void sizesToPad() {
        refused(
                "a: expected a multiple of 16 numbers to sum over, which FP8 products load at once, got FLOAT8_E4M3[16, 40] TENSOR"
                        + " of which 40 are summed over; pad with zeros to 48",
                rowwise(Scaling.TENSOR, E4M3, 16, 40),
                NO,
                rowwise(Scaling.TENSOR, E4M3, 8, 40),
                YES,
                of(DType.BFLOAT16, 16, 8));
        refused(
                "a: expected a multiple of 16 numbers to sum over, which FP8 products load at once, got FLOAT8_E5M2[20, 16] TENSOR"
                        + " of which 20 are summed over; pad with zeros to 32",
                columnwise(Scaling.TENSOR, E5M2, 20, 16),
                YES,
                columnwise(Scaling.TENSOR, E4M3, 20, 8),
                NO,
                of(DType.BFLOAT16, 16, 8));
        QuantizedTensor a = rowwise(Scaling.TENSOR, E4M3, 16, 32);
        QuantizedTensor b = rowwise(Scaling.TENSOR, E4M3, 6, 32);
        refused(
                "d: expected a multiple of 8 columns, which FP8 products of BFLOAT16 store at once, got BFLOAT16[16, 6]; pad b and"
                        + " d to 8",
                a,
                NO,
                b,
                YES,
                of(DType.BFLOAT16, 16, 6));
        refused(
                "d: expected a multiple of 4 columns, which FP8 products of FLOAT32 store at once, got FLOAT32[16, 6]; pad b and"
                        + " d to 8",
                a,
                NO,
                b,
                YES,
                of(DType.FLOAT32, 16, 6));
        refused(
                "d: expected a multiple of 8 columns, which products of blocks store at once, got FLOAT32[16, 12]; pad b and d to"
                        + " 16",
                rowwise(Scaling.BLOCK_1D, E4M3, 16, 32),
                NO,
                rowwise(Scaling.BLOCK_2D, E4M3, 12, 32),
                YES,
                of(DType.FLOAT32, 16, 12));
        refused(
                "d: expected a multiple of 8 rows, for a is scaled by BLOCK_1D, got BFLOAT16[12, 16]; pad a and d to 16",
                rowwise(Scaling.BLOCK_1D, E4M3, 12, 32),
                NO,
                rowwise(Scaling.BLOCK_2D, E4M3, 16, 32),
                YES,
                of(DType.BFLOAT16, 12, 16));
    }

    @Test
    void whatDoesNotGoTogether() {
        Tensor d = of(DType.BFLOAT16, 16, 16);
        QuantizedTensor blocks = rowwise(Scaling.BLOCK_2D, E4M3, 16, 32);
        QuantizedTensor one = rowwise(Scaling.TENSOR, E4M3, 16, 32);
        QuantizedTensor wide = rowwise(Scaling.TENSOR, E5M2, 16, 32);
        refused(
                "b: expected FLOAT8_E4M3, for a is FLOAT8_E5M2 and cuBLASLt has no product of two, got FLOAT8_E5M2[16, 32] TENSOR",
                wide,
                NO,
                wide,
                YES,
                d);
        refused(
                "b: expected scaling by TENSOR, for a is scaled by TENSOR, got FLOAT8_E4M3[16, 32] BLOCK_2D",
                one,
                NO,
                blocks,
                YES,
                d);
        refused(
                "b: expected scaling by BLOCK_1D or BLOCK_2D, for a is scaled by BLOCK_2D, got FLOAT8_E4M3[16, 32] TENSOR",
                blocks,
                NO,
                one,
                YES,
                d);
        refused(
                "b: expected scaling by BLOCK_1D, for a is scaled by BLOCK_2D and cuBLASLt has no product of two, got"
                        + " FLOAT8_E4M3[16, 32] BLOCK_2D",
                blocks,
                NO,
                blocks,
                YES,
                d);
        QuantizedTensor rows = rowwise(Scaling.BLOCK_1D, E4M3, 16, 32);
        assertThrown(
                ARGUMENT,
                "accumulator: expected SPLIT, for products of blocks apply a scale each 128 numbers, got FAST",
                () -> Gemm.gemm(rows, NO, blocks, YES, d, Output.OVERWRITE, Accumulator.FAST, open.stream()));
    }

    @Test
    void biases() {
        QuantizedTensor a = rowwise(Scaling.TENSOR, E4M3, 16, 32);
        Tensor d = of(DType.FLOAT32, 16, 16);
        assertThrown(
                ARGUMENT,
                "bias: expected BFLOAT16[16], got FLOAT32[16]",
                () -> Gemm.gemmBias(a, NO, a, YES, of(DType.FLOAT32, 16), d, Accumulator.FAST, open.stream()));
        QuantizedTensor none = rowwise(Scaling.TENSOR, E4M3, 16, 0);
        assertThrown(
                ARGUMENT,
                "a: expected K of at least 1, for a product with a bias, got FLOAT8_E4M3[16, 0] TENSOR",
                () -> Gemm.gemmBias(none, NO, none, YES, of(DType.BFLOAT16, 16), d, Accumulator.FAST, open.stream()));
    }

    @Test
    void memory() {
        Tensor buffer = of(DType.BFLOAT16, 16 * 32);
        Tensor inside = open.scope().view(open.scope().reinterpret(buffer, E4M3, 512, 512), 0, 16, 32);
        QuantizedTensor a = open.scope().quantized(Scaling.TENSOR, E4M3, 16, 32).rowwise(inside, of(DType.FLOAT32, 1));
        QuantizedTensor b = rowwise(Scaling.TENSOR, E4M3, 16, 32);
        Tensor d = open.scope().view(buffer, 128, 16, 16);
        String tail = "; it is written to while that is read or written";
        refused("d: expected memory of its own, got some of a's" + tail, a, NO, b, YES, d);
        refused("d: expected memory of its own, got some of b's" + tail, b, NO, a, YES, d);
        refused(
                "d: expected memory that begins at a multiple of 16 bytes, as every tensor of a scope does, got a view that does"
                        + " not; copy it into a tensor",
                b,
                NO,
                b,
                YES,
                open.scope().view(buffer, 4, 16, 16));
    }
}
