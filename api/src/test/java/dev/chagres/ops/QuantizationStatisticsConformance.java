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

/** {@code QuantizationStatistics} of TE's casts against double precision, and what it refuses. */
@Tag("L0")
@Tag("L1")
class QuantizationStatisticsConformance {
    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static QuantizedTensor cast(Scaling scaling, DType dtype, Tensor x, float scale) {
        QuantizedTensor q =
                open.scope().quantized(scaling, dtype, x.size(0), x.size(1)).allocateRowwise(open.scope());
        if (scaling == Scaling.TENSOR) {
            q.scale(open.tensor(DType.FLOAT32, new double[] {scale}, 1));
        }
        Cast.quantize(x, q, open.stream());
        return q;
    }

    @ParameterizedTest
    @EnumSource
    void casts(Scaling scaling) {
        for (DType dtype : new DType[] {DType.FLOAT8_E4M3, DType.FLOAT8_E5M2}) {
            for (int[] size : new int[][] {{16, 128}, {144, 272}}) {
                double[] values = open.normal(DType.BFLOAT16, size[0] * size[1], 1);
                for (int i = 0; i < values.length; i += 7) {
                    values[i] = Math.scalb(values[i] < 0 ? -1.0 : 1.0, -30 + i % 40);
                }
                Tensor x = open.tensor(DType.BFLOAT16, values, size[0], size[1]);
                QuantizedTensor q = cast(scaling, dtype, x, 200);
                Tensor statistics = open.unwritten(DType.FLOAT32, QuantizationStatistics.COUNT);
                QuantizationStatistics.quantizationStatistics(x, q, statistics, open.stream());
                double[] expected = expected(values, q, size[1]);
                float[] actual = open.read(statistics);
                for (int i = 0; i < actual.length; i++) {
                    assertEquals(expected[i], actual[i], 1e-5 * Math.abs(expected[i]), scaling + " number " + i);
                }
            }
        }
    }

    private static double[] expected(double[] values, QuantizedTensor q, int columns) {
        double[] stored = Float8Witness.values(q.rowwise().toBytes(open.stream()), q.dtype());
        float[] inverse = open.read(q.rowwiseScaleInverse());
        double largest = q.dtype() == DType.FLOAT8_E4M3 ? 448 : 57344;
        double[] expected = {0, 0, 0, 0, Double.MAX_VALUE, 0};
        for (int i = 0; i < values.length; i++) {
            int row = i / columns;
            int column = i % columns;
            double s = inverse[
                    switch (q.scaling()) {
                        case TENSOR -> 0;
                        case BLOCK_1D ->
                            column / 128 * (int) q.rowwiseScaleInverse().size(1) + row;
                        case BLOCK_2D ->
                            row / 128 * (int) q.rowwiseScaleInverse().size(1) + column / 128;
                    }];
            double error = values[i] - stored[i] * s;
            expected[0] = Math.max(expected[0], Math.abs(values[i]));
            expected[1] += values[i] != 0 && stored[i] == 0 ? 1.0 / values.length : 0;
            expected[2] += Math.abs(values[i]) > 1.001 * largest * s ? 1.0 / values.length : 0;
            expected[3] += error * error / values.length;
            expected[4] = Math.min(expected[4], 1 / s);
            expected[5] = Math.max(expected[5], 1 / s);
        }
        return expected;
    }

    @Test
    void whatIsNoNumberAndNothingAtAll() {
        double[] values = {Double.NaN, Double.POSITIVE_INFINITY, 2, 0};
        Tensor x = open.tensor(DType.FLOAT32, values, 1, 4);
        QuantizedTensor q = cast(Scaling.TENSOR, DType.FLOAT8_E4M3, x, 1);
        Tensor statistics = open.unwritten(DType.FLOAT32, 6);
        QuantizationStatistics.quantizationStatistics(x, q, statistics, open.stream());
        assertArrayEquals(new float[] {2, 0, 0.25f, 0, 1, 1}, open.read(statistics));
        Tensor none = open.scope().tensor(DType.FLOAT32, 0, 4);
        QuantizedTensor nothing =
                open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 0, 4).allocateRowwise(open.scope());
        QuantizationStatistics.quantizationStatistics(none, nothing, statistics, open.stream());
        assertArrayEquals(new float[6], open.read(statistics));
        Allocation.assertNone(
                "statistics", () -> QuantizationStatistics.quantizationStatistics(x, q, statistics, open.stream()));
    }

    @Test
    void refusals() {
        Tensor x = open.scope().tensor(DType.BFLOAT16, 16, 32);
        QuantizedTensor q = open.scope()
                .quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 32)
                .allocateRowwise(open.scope());
        Tensor statistics = open.unwritten(DType.FLOAT32, 6);
        refused("x: expected a matrix of FLOAT32, FLOAT16 or BFLOAT16, got FLOAT32[6]", statistics, q, statistics);
        refused(
                "q: expected rowwise data, got QuantizedTensor FLOAT8_E4M3[16, 32] TENSOR without; set it by rowwise or"
                        + " allocateRowwise",
                x,
                open.scope().quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 16, 32),
                statistics);
        refused(
                "q: expected [16, 16] as x has, got QuantizedTensor FLOAT8_E4M3[16, 32] TENSOR",
                open.scope().tensor(DType.BFLOAT16, 16, 16),
                q,
                statistics);
        refused("statistics: expected FLOAT32[6], got FLOAT32[5]", x, q, open.unwritten(DType.FLOAT32, 5));
        Tensor floats = open.scope().tensor(DType.FLOAT32, 16, 32);
        refused(
                "statistics: expected memory of its own, got some of x's; it is written to while that is read or written",
                floats,
                q,
                open.scope().view(floats, 0, 6));
    }

    private static void refused(String text, Tensor x, QuantizedTensor q, Tensor statistics) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> QuantizationStatistics.quantizationStatistics(x, q, statistics, open.stream()));
    }
}
