package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.AddressCalls;
import dev.chagres.bindings.Status;
import dev.chagres.internal.Checks;

/**
 * Copies a range of columns of a matrix into another.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code cudaMemcpy2DAsync} of {@code cuda_runtime_api.h}.
 */
public final class Columns {
    /** {@code cudaMemcpyDeviceToDevice}. */
    private static final int DEVICE_TO_DEVICE = 3;

    private Columns() {}

    /**
     * Enqueues {@code y[r, yColumn + c] = x[r, xColumn + c]} for each row r and c below {@code count}; the other columns of y stay.
     *
     * @param x [R, columns of x], any type
     * @param xColumn first column that is read
     * @param y [R, columns of y], in the type of x
     * @param yColumn first column that is written
     * @param count columns that are copied
     * @throws IllegalArgumentException when shapes, types or devices do not fit, a column is outside, or y shares memory with x
     */
    public static void copyColumns(Tensor x, long xColumn, Tensor y, long yColumn, long count, Stream stream) {
        Checks.on(stream, "x", x);
        Checks.on(stream, "y", y);
        if (x.rank() != 2) {
            throw new IllegalArgumentException("x: expected a matrix, got " + Checks.describe(x));
        }
        if (y.rank() != 2 || y.size(0) != x.size(0) || y.dtype() != x.dtype()) {
            throw new IllegalArgumentException("y: expected a matrix of " + x.dtype() + " with " + x.size(0)
                    + " rows, as x has, got " + Checks.describe(y));
        }
        checkWithin("xColumn", xColumn, count, "x", x);
        checkWithin("yColumn", yColumn, count, "y", y);
        Checks.written("y", y, "x", x);
        if (count == 0 || x.size(0) == 0) {
            return; // CUDA refuses a pitch of 0.
        }
        int size = x.dtype().byteSize();
        Status.cuda(
                AddressCalls.cudaMemcpy2DAsync(
                        y.address() + yColumn * size,
                        y.size(1) * size,
                        x.address() + xColumn * size,
                        x.size(1) * size,
                        count * size,
                        x.size(0),
                        DEVICE_TO_DEVICE,
                        stream.handle()),
                "cudaMemcpy2DAsync");
    }

    private static void checkWithin(String argument, long column, long count, String matrix, Tensor tensor) {
        if (column < 0 || count < 0 || column > tensor.size(1) - count) {
            throw new IllegalArgumentException(argument + ", count: expected columns of " + matrix + ", "
                    + Checks.describe(tensor) + ", got " + count + " from column " + column + " on");
        }
    }
}
