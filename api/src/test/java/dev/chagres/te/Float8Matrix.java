package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.witness.Float8Witness;
import org.apache.commons.math3.linear.BlockRealMatrix;
import org.apache.commons.math3.linear.RealMatrix;

/**
 * A quantized matrix of drawn bytes and scales that has one copy, and what it stands for in double precision.
 *
 * @param tensor has that copy alone
 * @param values [rows, columns]
 */
record Float8Matrix(QuantizedTensor tensor, RealMatrix values) {
    /** Draws one with rowwise data. */
    static Float8Matrix rowwise(OpenDevice open, Scaling scaling, DType dtype, int rows, int columns) {
        Copy copy = new Copy(open, scaling, dtype, rows, columns);
        QuantizedTensor tensor = open.scope().quantized(scaling, dtype, rows, columns);
        return new Float8Matrix(tensor.rowwise(copy.data, copy.scaleInverse), copy.values);
    }

    /** Draws one with columnwise data. */
    static Float8Matrix columnwise(OpenDevice open, Scaling scaling, DType dtype, int rows, int columns) {
        Copy copy = new Copy(open, scaling, dtype, columns, rows);
        QuantizedTensor tensor = open.scope().quantized(scaling, dtype, rows, columns);
        return new Float8Matrix(tensor.columnwise(copy.data, copy.scaleInverse), copy.values.transpose());
    }

    /** Returns a quantized tensor with all parts, whose amax is 0. */
    static QuantizedTensor empty(OpenDevice open, DType dtype, long rows, long columns, float scale) {
        QuantizedTensor tensor = open.scope()
                .quantized(Scaling.TENSOR, dtype, rows, columns)
                .allocateRowwise(open.scope())
                .allocateColumnwise(open.scope());
        return withScale(open, tensor, scale);
    }

    /** Returns a quantized tensor without columnwise data, whose amax is 0. */
    static QuantizedTensor emptyRowwise(OpenDevice open, DType dtype, long rows, long columns, float scale) {
        QuantizedTensor tensor =
                open.scope().quantized(Scaling.TENSOR, dtype, rows, columns).allocateRowwise(open.scope());
        return withScale(open, tensor, scale);
    }

    private static QuantizedTensor withScale(OpenDevice open, QuantizedTensor tensor, float scale) {
        Tensor amax = open.scope().tensor(DType.FLOAT32, 1);
        amax.zero(open.stream());
        return tensor.scale(open.tensor(DType.FLOAT32, new double[] {scale}, 1)).amax(amax);
    }

    /** Data and scales of a copy [rows, columns]. */
    private static final class Copy {
        private final Tensor data;
        private final Tensor scaleInverse;
        private final RealMatrix values;

        Copy(OpenDevice open, Scaling scaling, DType dtype, int rows, int columns) {
            Shape shape = scaling.scaleInverseShape(rows, columns);
            float[] scales = new float[(int) shape.count()];
            for (int i = 0; i < scales.length; i++) {
                scales[i] = (float) open.random().nextDouble(0.25, 4);
            }
            byte[] bytes = new byte[rows * columns];
            values = new BlockRealMatrix(Math.max(1, rows), Math.max(1, columns));
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = draw(open, dtype);
                int row = i / columns;
                int column = i % columns;
                int scale = switch (scaling) {
                    case TENSOR -> 0;
                    case BLOCK_1D -> column / 128 * (int) shape.size(1) + row;
                    case BLOCK_2D -> row / 128 * (int) shape.size(1) + column / 128;
                };
                values.setEntry(row, column, Float8Witness.value(bytes[i], dtype) * scales[scale]);
            }
            data = open.scope().tensor(dtype, rows, columns);
            data.set(open.stream(), bytes);
            scaleInverse = open.scope().tensor(DType.FLOAT32, shape);
            scaleInverse.set(open.stream(), scales);
        }

        /** Returns a number from 1/8 to 2 in magnitude, or 0: sums of such are far from what a type cannot hold. */
        private static byte draw(OpenDevice open, DType dtype) {
            while (true) {
                byte bits = (byte) open.random().nextInt(256);
                double magnitude = Math.abs(Float8Witness.value(bits, dtype));
                if (magnitude == 0 || (magnitude >= 0.125 && magnitude <= 2)) {
                    return bits;
                }
            }
        }
    }
}
