package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.te.Cast;
import dev.chagres.witness.Float8Witness;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code BlockDequantization} of TE's casts against double precision, and what it refuses. */
@Tag("L0")
@Tag("L1")
class BlockDequantizationConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static QuantizedTensor cast(Scaling scaling, DType dtype, Tensor x) {
        QuantizedTensor q =
                open.scope().quantized(scaling, dtype, x.size(0), x.size(1)).allocateRowwise(open.scope());
        Cast.quantize(x, q, open.stream());
        return q;
    }

    @ParameterizedTest
    @EnumSource(
            value = Scaling.class,
            names = {"BLOCK_1D", "BLOCK_2D"})
    void casts(Scaling scaling) {
        for (DType dtype : new DType[] {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}) {
            for (int[] size : new int[][] {{16, 128}, {144, 272}, {1, 16}}) {
                double[] values = open.normal(DType.BFLOAT16, size[0] * size[1], 1);
                Tensor x = open.tensor(DType.BFLOAT16, values, size[0], size[1]);
                QuantizedTensor q = cast(scaling, dtype, x);
                double[] expected = expected(q, size[1]);
                for (DType to : new DType[] {DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16}) {
                    Tensor y = open.unwritten(to, size[0], size[1]);
                    BlockDequantization.dequantizeBlocks(q, y, open.stream());
                    float[] actual = open.read(y);
                    for (int i = 0; i < actual.length; i++) {
                        assertEquals(rounded(expected[i], to), actual[i], scaling + " element " + i + " in " + to);
                    }
                }
            }
        }
    }

    private static float rounded(double value, DType to) {
        return switch (to) {
            case BFLOAT16 -> Float.intBitsToFloat(DType.toBfloat16((float) value) << 16);
            case FLOAT16 -> Float.float16ToFloat(Float.floatToFloat16((float) value));
            default -> (float) value;
        };
    }

    private static double[] expected(QuantizedTensor q, int columns) {
        double[] values = Float8Witness.values(q.rowwise().toBytes(open.stream()), q.dtype());
        float[] inverse = open.read(q.rowwiseScaleInverse());
        int stride = (int) q.rowwiseScaleInverse().size(1);
        for (int i = 0; i < values.length; i++) {
            int row = i / columns;
            int block = i % columns / 128;
            values[i] *= inverse[q.scaling() == Scaling.BLOCK_1D ? block * stride + row : row / 128 * stride + block];
        }
        return values;
    }

    @Test
    void nothingAtAllAndNoGarbage() {
        QuantizedTensor nothing = open.scope()
                .quantized(Scaling.BLOCK_2D, DType.FLOAT8_E4M3, 0, 16)
                .allocateRowwise(open.scope());
        Tensor none = open.scope().tensor(DType.BFLOAT16, 0, 16);
        BlockDequantization.dequantizeBlocks(nothing, none, open.stream());
        Tensor x = open.tensor(DType.BFLOAT16, open.normal(DType.BFLOAT16, 16 * 32, 1), 16, 32);
        QuantizedTensor q = cast(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, x);
        Tensor y = open.unwritten(DType.BFLOAT16, 16, 32);
        BlockDequantization.dequantizeBlocks(q, y, open.stream());
        float[] first = open.read(y);
        Allocation.assertNone("dequantizeBlocks", () -> BlockDequantization.dequantizeBlocks(q, y, open.stream()));
        assertArrayEquals(first, open.read(y));
    }

    @Test
    void refusals() {
        QuantizedTensor q = open.scope()
                .quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 16, 32)
                .allocateRowwise(open.scope());
        Tensor y = open.unwritten(DType.BFLOAT16, 16, 32);
        refused(
                "q: expected a scale for each block, got QuantizedTensor FLOAT8_E4M3[16, 32] TENSOR; call Cast.dequantize",
                open.scope()
                        .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 32)
                        .allocateRowwise(open.scope()),
                y);
        refused(
                "q: expected rowwise data, got QuantizedTensor FLOAT8_E4M3[16, 32] BLOCK_1D without; set it by rowwise or"
                        + " allocateRowwise",
                open.scope().quantized(Scaling.BLOCK_1D, DType.FLOAT8_E4M3, 16, 32),
                y);
        refused("y: expected [16, 32] as q has, got BFLOAT16[16, 16]", q, open.unwritten(DType.BFLOAT16, 16, 16));
        refused(
                "y: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT32[6]",
                q,
                open.unwritten(DType.FLOAT32, 6));
    }

    private static void refused(String text, QuantizedTensor q, Tensor y) {
        assertThrown(
                IllegalArgumentException.class, text, () -> BlockDequantization.dequantizeBlocks(q, y, open.stream()));
    }
}
