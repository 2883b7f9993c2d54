package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.QuantizedTensor;
import dev.chagres.Scaling;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;

/**
 * Measures the error of quantization to FP8.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_quantization_statistics} in {@code ops.h}.
 */
public final class QuantizationStatistics {
    /** How many numbers {@link #quantizationStatistics} writes. */
    public static final int COUNT = 6;

    private QuantizationStatistics() {}

    /**
     * Enqueues six numbers about x and q, which stands for {@code q s}: the amax of x; the fraction of elements that underflow, where q is
     * 0 but x is not; the fraction that overflow, where |x| is above 1.001 times the largest that q can stand for (the tolerance is for the
     * rounding of scales); the mean of {@code (x - q s)^2}; the smallest and the largest scale {@code 1 / s}. NaN is ignored, infinities
     * count only as overflow. Without elements all are 0.
     *
     * @param x [R, C], FLOAT32, FLOAT16 or BFLOAT16
     * @param q [R, C] with rowwise data
     * @param statistics FLOAT32 [6]
     * @throws IllegalArgumentException when shapes, types, parts or devices do not fit, or statistics shares memory
     */
    public static void quantizationStatistics(Tensor x, QuantizedTensor q, Tensor statistics, Stream stream) {
        Checks.matrix(stream, "x", x);
        Tensor data = Checks.given("q", q).rowwise();
        Tensor scaleInverse = q.rowwiseScaleInverse();
        if (data == null || scaleInverse == null) {
            throw new IllegalArgumentException(
                    "q: expected rowwise data, got " + q + " without; set it by rowwise or allocateRowwise");
        }
        q.handle();
        Checks.on(stream, "q", data);
        if (q.rows() != x.size(0) || q.columns() != x.size(1)) {
            throw new IllegalArgumentException("q: expected [" + x.size(0) + ", " + x.size(1) + "] as x has, got " + q);
        }
        Checks.vector(stream, "statistics", statistics, DType.FLOAT32, COUNT);
        Checks.written("statistics", statistics, "x", x, "q", data);
        Checks.apart("statistics", statistics, "q", scaleInverse);
        Status.ops(
                Ops.ops_quantization_statistics(
                        x.address(),
                        data.address(),
                        scaleInverse.address(),
                        statistics.address(),
                        x.size(0),
                        x.size(1),
                        q.scaling() == Scaling.TENSOR ? 0 : scaleInverse.size(1),
                        q.scaling().code(),
                        x.dtype().code(),
                        q.dtype().code(),
                        stream.handle()),
                "ops_quantization_statistics");
    }
}
