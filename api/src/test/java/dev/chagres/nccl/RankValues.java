package dev.chagres.nccl;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import java.util.Arrays;
import java.util.SplittableRandom;

/** Small whole numbers for collectives, a different row for each rank: every type holds them and their sums exactly. */
final class RankValues {
    /** All but INT16, which NCCL lacks. */
    static final DType[] TYPES =
            Arrays.stream(DType.values()).filter(dtype -> dtype != DType.INT16).toArray(DType[]::new);

    private RankValues() {}

    /** Element {@code i} of rank {@code rank}: 0 to 3. */
    static double value(int seed, int rank, int i) {
        return new SplittableRandom(seed * 7919L + rank * 104_729L + i).nextInt(4);
    }

    static double[] row(int seed, int rank, int count) {
        double[] row = new double[count];
        for (int i = 0; i < count; i++) {
            row[i] = value(seed, rank, i);
        }
        return row;
    }

    static void set(Tensor tensor, Stream stream, double... values) {
        int count = values.length;
        if (tensor.dtype() == DType.FLOAT64) {
            tensor.set(stream, values);
            return;
        }
        switch (tensor.dtype()) {
            case INT32, UINT32 -> {
                int[] ints = new int[count];
                for (int i = 0; i < count; i++) {
                    ints[i] = (int) values[i];
                }
                tensor.set(stream, ints);
            }
            case INT64, UINT64 -> {
                long[] longs = new long[count];
                for (int i = 0; i < count; i++) {
                    longs[i] = (long) values[i];
                }
                tensor.set(stream, longs);
            }
            case BYTE, INT8, FLOAT8_E4M3, FLOAT8_E5M2 -> {
                byte[] bytes = new byte[count];
                for (int i = 0; i < count; i++) {
                    bytes[i] = toByte(tensor.dtype(), values[i]);
                }
                tensor.set(stream, bytes);
            }
            default -> {
                float[] floats = new float[count];
                for (int i = 0; i < count; i++) {
                    floats[i] = (float) values[i];
                }
                tensor.set(stream, floats);
            }
        }
    }

    static double[] get(Tensor tensor, Stream stream) {
        if (tensor.dtype() == DType.FLOAT64) {
            return tensor.toDoubles(stream);
        }
        double[] values = new double[(int) tensor.count()];
        switch (tensor.dtype()) {
            case INT32, UINT32 -> {
                int[] ints = tensor.toInts(stream);
                for (int i = 0; i < values.length; i++) {
                    values[i] = ints[i];
                }
            }
            case INT64, UINT64 -> {
                long[] longs = tensor.toLongs(stream);
                for (int i = 0; i < values.length; i++) {
                    values[i] = longs[i];
                }
            }
            case BYTE, INT8, FLOAT8_E4M3, FLOAT8_E5M2 -> {
                byte[] bytes = tensor.toBytes(stream);
                for (int i = 0; i < values.length; i++) {
                    values[i] = fromByte(tensor.dtype(), bytes[i]);
                }
            }
            default -> {
                float[] floats = tensor.toFloats(stream);
                for (int i = 0; i < values.length; i++) {
                    values[i] = floats[i];
                }
            }
        }
        return values;
    }

    /** Bits of mantissa of FP8. */
    private static int mantissa(DType dtype) {
        return dtype == DType.FLOAT8_E4M3 ? 3 : 2;
    }

    private static int bias(DType dtype) {
        return dtype == DType.FLOAT8_E4M3 ? 7 : 15;
    }

    /** A number of at least 0, rounded to nearest even where FP8 does not have it. */
    static byte toByte(DType dtype, double value) {
        if (!dtype.isFloat8() || value == 0) {
            return (byte) (int) value;
        }
        int exponent = Math.getExponent(value);
        long steps = (long) Math.rint(Math.scalb(value, mantissa(dtype) - exponent));
        if (steps == 2L << mantissa(dtype)) {
            exponent++;
            steps >>= 1;
        }
        return (byte) ((exponent + bias(dtype)) << mantissa(dtype) | (steps & ((1L << mantissa(dtype)) - 1)));
    }

    static double fromByte(DType dtype, byte bits) {
        if (dtype == DType.INT8) {
            return bits;
        }
        int code = bits & 0xff;
        if (!dtype.isFloat8() || code == 0) {
            return code;
        }
        int exponent = (code >> mantissa(dtype)) - bias(dtype);
        double fraction = 1 + (code & ((1 << mantissa(dtype)) - 1)) / (double) (1 << mantissa(dtype));
        return Math.scalb(fraction, exponent);
    }

    /** What a result of this value becomes in the type. */
    static double rounded(DType dtype, double value) {
        return dtype.isFloat8() ? fromByte(dtype, toByte(dtype, value)) : value;
    }
}
