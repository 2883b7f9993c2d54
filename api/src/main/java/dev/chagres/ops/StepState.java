package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * What an optimizer keeps of a range from step to step, one number for each weight.
 *
 * <p>Threading: the device's thread.
 *
 * @param values FLOAT32 or BFLOAT16 [n]; or BYTE [n], codes of numbers within [-1, 1]
 * @param scales of codes: FLOAT32 [n / 256, rounded up], what the numbers of 256 neighbours are multiplied by; else null
 */
public record StepState(Tensor values, @Nullable Tensor scales) {
    /** Codes whose scale is one. */
    public static final int BLOCK = 256;

    /**
     * The 256 numbers within [-1, 1] that codes stand for: 0; 1; and {@code 10^(d - 6) (0.1 + 0.9 (i + 1/2) / n)} with d from 0 to 6 and i
     * from 0 to n - 1.
     *
     * <p>Threading: immutable.
     *
     * <p>Source: {@code ops_optimizer_step} in {@code ops.h}.
     */
    public enum Codes {
        /** Of the first state, n being {@code 2^d}, with both signs: the byte 0 stands for 0, 128 for the least number. */
        SIGNED(1, 127),
        /** Of a running square, n being {@code 2^(d + 1)}: bytes count the numbers in rising order. */
        UNSIGNED(2, 0);

        private static final int DECADES = 7;
        /** Numbers within [-1, 1] have so many first halves, but for the sign: up to 0x3f80, that of 1. */
        private static final int HALVES = 0x3f81;

        private final float[] rising = new float[BLOCK];
        /** A place near to the numbers of each first half, those with a sign behind the others: a search of all takes five times as long. */
        private final short[] near = new short[2 * HALVES];
        /** The place in rising order of the number of the byte 0. */
        private final int zero;

        Codes(int first, int zero) {
            this.zero = zero;
            int next = 0;
            rising[next++] = 0;
            rising[next++] = 1;
            for (int decade = 0; decade < DECADES; decade++) {
                int count = first << decade;
                for (int i = 0; i < count; i++) {
                    float number = (float) (Math.pow(10, decade + 1 - DECADES) * (0.1 + 0.9 * (i + 0.5) / count));
                    rising[next++] = number;
                    if (zero > 0) {
                        rising[next++] = -number;
                    }
                }
            }
            Arrays.sort(rising);
            for (int half = 0; half < HALVES; half++) {
                float number = Float.intBitsToFloat(half << 16);
                near[half] = (short) Math.min(Math.abs(Arrays.binarySearch(rising, number)), BLOCK - 1);
                near[HALVES + half] = (short) Math.min(Math.abs(Arrays.binarySearch(rising, -number)), BLOCK - 1);
            }
        }

        /** Returns the number of a code. */
        public float number(byte code) {
            return rising[code + zero & 0xff];
        }

        /** Returns the code of the nearest number, the smaller one of two; any for NaN. */
        public byte nearest(float number) {
            int bits = Float.floatToRawIntBits(number);
            int place = near[Math.min((bits & Integer.MAX_VALUE) >>> 16, HALVES - 1) + (bits < 0 ? HALVES : 0)];
            while (place > 0 && number - rising[place - 1] <= rising[place] - number) {
                place--;
            }
            while (place < BLOCK - 1 && rising[place + 1] - number < number - rising[place]) {
                place++;
            }
            return (byte) (place - zero);
        }
    }

    /**
     * Checks that scales are beside codes alone; sizes are checked by {@link StepRanges#of}.
     *
     * @throws IllegalArgumentException when codes have no scales, or numbers have some
     */
    public StepState {
        if (Checks.given("values", values).dtype() == DType.BYTE ^ scales != null) {
            throw new IllegalArgumentException(
                    "scales: expected " + (scales == null ? "those of codes" : "none of numbers") + ", got "
                            + (scales == null ? "none" : Checks.describe(scales)));
        }
    }

    /** Returns a state of numbers. */
    public static StepState of(Tensor values) {
        return new StepState(values, null);
    }

    void check(String name, Stream stream, long count) {
        Checks.vector(stream, name, values, values.dtype(), count);
        Checks.writable(name, values);
        if (scales != null) {
            Checks.vector(stream, name + "Scales", scales, DType.FLOAT32, Math.ceilDiv(count, (long) BLOCK));
            Checks.writable(name + "Scales", scales);
        }
    }
}
