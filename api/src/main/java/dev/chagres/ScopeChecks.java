package dev.chagres;

import java.util.Arrays;

/**
 * Checks of what a scope is asked for: sizes whose bytes can be counted, and elements that a tensor of the scope's device has.
 *
 * <p>Threading: the device's thread.
 */
final class ScopeChecks {
    private ScopeChecks() {}

    /** Returns the elements of a shape whose bytes can be counted. */
    static long count(DType dtype, int rank, long d0, long d1, long d2, long d3) {
        if (d0 < 0 || d1 < 0 || d2 < 0 || d3 < 0) {
            throw new IllegalArgumentException("shape: expected no negative size, got " + text(rank, d0, d1, d2, d3));
        }
        long count = Shape.product(rank, d0, d1, d2, d3);
        if (count < 0 || count > Long.MAX_VALUE / dtype.byteSize()) {
            throw new IllegalArgumentException(
                    "shape: expected at most " + Long.MAX_VALUE + " bytes, got " + dtype + text(rank, d0, d1, d2, d3));
        }
        return count;
    }

    private static String text(int rank, long... sizes) {
        return Arrays.toString(Arrays.copyOf(sizes, rank));
    }

    /** Returns the error for a tensor of another device than this one, or of this one before it was closed and opened again. */
    static IllegalArgumentException elsewhere(Device device, Tensor tensor) {
        String which = tensor.deviceIndex() == device.index() ? ", opened another time" : "";
        return new IllegalArgumentException("tensor: expected a tensor of " + device + ", got " + tensor.dtype()
                + tensor.shape() + " of device " + tensor.deviceIndex() + which);
    }

    /** Checks that the tensor has {@code count} elements from {@code offset} on. */
    static void within(Tensor tensor, long offset, long count) {
        if (offset < 0 || offset > tensor.count() - count) {
            throw new IllegalArgumentException(
                    "offset: expected elements within " + tensor + ", got " + count + " from " + offset + " on");
        }
    }

    /** Checks that the tensor's memory has {@code count} elements of another type from {@code offset} on, in elements of that type. */
    static void within(Tensor tensor, DType dtype, long offset, long count) {
        long available = tensor.byteSize() / Given.given("dtype", dtype).byteSize();
        if (offset < 0 || count < 0 || offset > available - count) {
            throw new IllegalArgumentException("offset: expected elements within " + tensor + ", got " + count + " of "
                    + dtype + " from " + offset + " on");
        }
        if (count > 0 && tensor.address() % dtype.byteSize() != 0) {
            throw new IllegalArgumentException(
                    "tensor: expected memory that begins at a multiple of " + dtype.byteSize()
                            + " bytes, which elements of " + dtype + " need, got " + tensor + " at 0x"
                            + Long.toHexString(tensor.address()));
        }
    }

    /** Checks what a quantized matrix is to be. */
    static void quantized(Scaling scaling, DType dtype, long rows, long columns) {
        Given.given("scaling", scaling);
        if (!Given.given("dtype", dtype).isFloat8()) {
            throw new IllegalArgumentException("dtype: expected FLOAT8_E4M3 or FLOAT8_E5M2, got " + dtype);
        }
        count(dtype, 2, rows, columns, 1, 1);
    }
}
