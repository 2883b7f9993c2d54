package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.nccl.Nccl;
import dev.chagres.internal.Checks;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * Makes pre-multiplied sums: the factor as one number of the values' type.
 *
 * <p>Threading: the device's thread.
 */
final class PreMulSumFactor {
    private static final int LARGEST_BYTE = 255;
    private static final long LARGEST_UNSIGNED_INT = 0xffff_ffffL;

    private PreMulSumFactor() {}

    static PremultipliedSum sum(Endpoint endpoint, DType dtype, double factor) {
        endpoint.ensureUsable();
        Checks.given("dtype", dtype);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment scalar = arena.allocate(Long.BYTES, Long.BYTES);
            write(scalar, dtype, factor);
            MemorySegment out = arena.allocate(ValueLayout.JAVA_INT);
            Status.nccl(
                    Nccl.ncclRedOpCreatePreMulSum(
                            out,
                            scalar,
                            CollectiveArguments.type(dtype),
                            Nccl.ncclScalarHostImmediate(),
                            endpoint.handle()),
                    "ncclRedOpCreatePreMulSum");
            return new PremultipliedSum(endpoint, dtype, out.get(ValueLayout.JAVA_INT, 0));
        }
    }

    private static void write(MemorySegment scalar, DType dtype, double factor) {
        switch (dtype) {
            case FLOAT64 -> scalar.set(ValueLayout.JAVA_DOUBLE, 0, factor);
            case FLOAT32, FLOAT16, BFLOAT16 -> dtype.fromFloats(new float[] {(float) factor}, 0, scalar, 0, 1);
            case INT64 -> scalar.set(ValueLayout.JAVA_LONG, 0, whole(dtype, factor, Long.MIN_VALUE, Long.MAX_VALUE));
            case INT32 ->
                scalar.set(ValueLayout.JAVA_INT, 0, (int) whole(dtype, factor, Integer.MIN_VALUE, Integer.MAX_VALUE));
            case INT16 -> throw new IllegalArgumentException("dtype: expected a type that NCCL has, got " + dtype);
            case UINT64 -> scalar.set(ValueLayout.JAVA_LONG, 0, unsigned(dtype, factor));
            case UINT32 -> scalar.set(ValueLayout.JAVA_INT, 0, (int) whole(dtype, factor, 0, LARGEST_UNSIGNED_INT));
            case INT8 ->
                scalar.set(ValueLayout.JAVA_BYTE, 0, (byte) whole(dtype, factor, Byte.MIN_VALUE, Byte.MAX_VALUE));
            case BYTE -> scalar.set(ValueLayout.JAVA_BYTE, 0, (byte) whole(dtype, factor, 0, LARGEST_BYTE));
            case FLOAT8_E4M3, FLOAT8_E5M2 ->
                throw new IllegalArgumentException(
                        "dtype: expected no FP8, whose values stand for numbers only together" + " with a scale, got "
                                + dtype);
        }
    }

    private static long unsigned(DType dtype, double factor) {
        if (factor != Math.rint(factor) || !(factor >= 0 && factor < 0x1p64)) {
            throw notHeld(dtype, factor);
        }
        // A double of 2^63 or more is even, so halving it loses nothing.
        return factor < 0x1p63 ? (long) factor : (long) (factor / 2) << 1;
    }

    private static IllegalArgumentException notHeld(DType dtype, double factor) {
        return new IllegalArgumentException("factor: expected a whole number that " + dtype + " holds, got " + factor);
    }

    private static long whole(DType dtype, double factor, long least, long most) {
        // As a double the largest long is 2^63, which no long holds.
        if (factor != Math.rint(factor) || factor < least || factor > most || factor >= 0x1p63) {
            throw notHeld(dtype, factor);
        }
        return (long) factor;
    }
}
