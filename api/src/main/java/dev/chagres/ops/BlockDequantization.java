package dev.chagres.ops;

import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;

/**
 * Dequantizes FP8 with block scales. {@link dev.chagres.te.Cast#dequantize} takes tensors with one scale.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_dequantize_blocks} in {@code ops.h}.
 */
public final class BlockDequantization {
    private BlockDequantization() {}

    /**
     * Enqueues {@code y = q s} for the rowwise data, with s the scale inverse of the element's block, rounded to nearest even.
     *
     * @param q [R, C] with rowwise data, scaled by {@link Scaling#BLOCK_1D} or {@link Scaling#BLOCK_2D}
     * @param y [R, C], FLOAT32, FLOAT16 or BFLOAT16
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or y shares memory with q
     */
    public static void dequantizeBlocks(QuantizedTensor q, Tensor y, Stream stream) {
        Checks.matrix(stream, "y", y);
        if (Checks.given("q", q).scaling() == Scaling.TENSOR) {
            throw new IllegalArgumentException(
                    "q: expected a scale for each block, got " + q + "; call Cast.dequantize");
        }
        Tensor data = q.rowwise();
        Tensor scaleInverse = q.rowwiseScaleInverse();
        if (data == null || scaleInverse == null) {
            throw new IllegalArgumentException(
                    "q: expected rowwise data, got " + q + " without; set it by rowwise or allocateRowwise");
        }
        q.handle();
        Checks.on(stream, "q", data);
        if (q.rows() != y.size(0) || q.columns() != y.size(1)) {
            throw new IllegalArgumentException(
                    "y: expected [" + q.rows() + ", " + q.columns() + "] as q has, got " + Checks.describe(y));
        }
        Checks.written("y", y, "q", data, "q", scaleInverse);
        Status.ops(
                Ops.ops_dequantize_blocks(
                        data.address(),
                        scaleInverse.address(),
                        y.address(),
                        q.rows(),
                        q.columns(),
                        scaleInverse.size(1),
                        q.scaling().code(),
                        y.dtype().code(),
                        q.dtype().code(),
                        stream.handle()),
                "ops_dequantize_blocks");
    }
}
