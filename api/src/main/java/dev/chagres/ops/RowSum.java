package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.Output;

/**
 * The sum of the rows of a matrix: the gradient of a bias.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_row_sum} in {@code ops.h}.
 */
public final class RowSum {
    private RowSum() {}

    /**
     * Enqueues {@code sum[c] = sum over r of x[r, c]}, or adds that to {@code sum[c]}.
     *
     * @param x floating-point numbers [R, C]
     * @param sum FLOAT32 [C]
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or sum shares memory with x
     */
    public static void rowSum(Tensor x, Tensor sum, Output output, Stream stream) {
        Checks.given("output", output);
        Checks.matrix(stream, "x", x);
        Checks.vector(stream, "sum", sum, DType.FLOAT32, x.size(1));
        Checks.written("sum", sum, "x", x);
        Status.ops(
                Ops.ops_row_sum(
                        x.address(),
                        sum.address(),
                        output.beta(),
                        x.size(0),
                        x.size(1),
                        x.dtype().code(),
                        stream.handle()),
                "ops_row_sum");
    }
}
