package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;

/**
 * Gathers and scatters rows of a matrix by index.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_gather_rows}, {@code ops_scatter_rows} in {@code ops.h}.
 */
public final class Rows {
    private Rows() {}

    /**
     * Enqueues {@code y[r] = x[index[r]]}. A row whose index is outside x becomes 0.
     *
     * @param x [rows of x, C], INT32, FLOAT32, FLOAT16 or BFLOAT16
     * @param index INT32 [R]
     * @param y [R, C], in the type of x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with another tensor
     */
    public static void gatherRows(Tensor x, Tensor index, Tensor y, Stream stream) {
        checkMatrix("x", x, stream);
        checkIndex(index, stream);
        Checks.matrix(stream, "y", y, x.dtype(), index.size(0), x.size(1));
        checkWritten(y, x, index);
        Status.ops(
                Ops.ops_gather_rows(
                        x.address(),
                        index.address(),
                        y.address(),
                        index.size(0),
                        x.size(1),
                        x.size(0),
                        x.dtype().code(),
                        stream.handle()),
                "ops_gather_rows");
    }

    /**
     * Enqueues {@code y[index[r]] = x[r]}. An index outside y is skipped; the other rows of y stay.
     *
     * @param x [R, C], INT32, FLOAT32, FLOAT16 or BFLOAT16
     * @param index INT32 [R]; of several equal ones within y any may win
     * @param y [rows of y, C], in the type of x
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or y shares memory with another tensor
     */
    public static void scatterRows(Tensor x, Tensor index, Tensor y, Stream stream) {
        checkMatrix("x", x, stream);
        checkIndex(index, stream);
        Checks.matrix(stream, "x", x, x.dtype(), index.size(0), x.size(1));
        Checks.matrix(stream, "y", y, x.dtype(), x.size(1));
        checkWritten(y, x, index);
        Status.ops(
                Ops.ops_scatter_rows(
                        x.address(),
                        index.address(),
                        y.address(),
                        index.size(0),
                        x.size(1),
                        y.size(0),
                        x.dtype().code(),
                        stream.handle()),
                "ops_scatter_rows");
    }

    private static void checkMatrix(String argument, Tensor tensor, Stream stream) {
        Checks.on(stream, argument, tensor);
        if (tensor.rank() != 2) {
            throw new IllegalArgumentException(argument + ": expected a matrix, got " + Checks.describe(tensor));
        }
        if (tensor.dtype() != DType.INT32 && !tensor.dtype().isFloat()) {
            throw new IllegalArgumentException(argument
                    + ": expected elements of INT32, FLOAT32, FLOAT16 or BFLOAT16, got " + Checks.describe(tensor));
        }
    }

    private static void checkIndex(Tensor index, Stream stream) {
        Checks.on(stream, "index", index);
        if (index.rank() != 1 || index.dtype() != DType.INT32) {
            throw new IllegalArgumentException("index: expected INT32[R], got " + Checks.describe(index));
        }
    }

    private static void checkWritten(Tensor y, Tensor x, Tensor index) {
        Checks.written("y", y, "x", x, "index", index);
    }
}
