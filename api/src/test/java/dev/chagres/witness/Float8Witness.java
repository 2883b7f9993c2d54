package dev.chagres.witness;

import dev.chagres.DType;

/** FP8 numbers by their definition: sign, exponent, mantissa. */
public final class Float8Witness {
    private Float8Witness() {}

    /** Returns the largest number of {@code dtype}. */
    public static double largest(DType dtype) {
        return dtype == DType.FLOAT8_E4M3 ? 448 : 57344;
    }

    /** Returns what {@code bits} stand for. */
    public static double value(byte bits, DType dtype) {
        boolean e4m3 = dtype == DType.FLOAT8_E4M3;
        int mantissaBits = e4m3 ? 3 : 2;
        int mantissa = bits & ((1 << mantissaBits) - 1);
        int exponent = (bits & 0x7f) >> mantissaBits;
        double sign = bits < 0 ? -1 : 1;
        if (e4m3 ? (bits & 0x7f) == 0x7f : exponent == 31 && mantissa != 0) {
            return Double.NaN;
        }
        if (!e4m3 && exponent == 31) {
            return sign * Double.POSITIVE_INFINITY;
        }
        int bias = e4m3 ? 7 : 15;
        double fraction = mantissa / (double) (1 << mantissaBits);
        return exponent == 0 ? sign * Math.scalb(fraction, 1 - bias) : sign * Math.scalb(1 + fraction, exponent - bias);
    }

    /** Returns the number of {@code dtype} that is nearest to {@code value}, ties to even, at most the largest. */
    public static double nearest(double value, DType dtype) {
        if (Double.isNaN(value)) {
            return value;
        }
        int precision = dtype == DType.FLOAT8_E4M3 ? 4 : 3;
        int leastExponent = dtype == DType.FLOAT8_E4M3 ? -6 : -14;
        double limited = Math.clamp(value, -largest(dtype), largest(dtype));
        int exponent = Math.max(Math.getExponent(limited), leastExponent);
        double unit = Math.scalb(1.0, exponent - precision + 1);
        return Math.rint(limited / unit) * unit;
    }

    /** Returns what quantizing stores for {@code value}: the product is FP32. */
    public static double quantized(double value, float scale, DType dtype) {
        return nearest((float) value * scale, dtype);
    }

    /** Returns what each of {@code bits} stands for. */
    public static double[] values(byte[] bits, DType dtype) {
        double[] values = new double[bits.length];
        for (int i = 0; i < bits.length; i++) {
            values[i] = value(bits[i], dtype);
        }
        return values;
    }
}
