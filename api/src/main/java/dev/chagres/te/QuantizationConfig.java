package dev.chagres.te;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import org.jspecify.annotations.Nullable;

/**
 * How scales are computed from amaxes, and whether to quantize at all.
 *
 * <p>A scale is {@code largest / amax}, where {@code largest} is what the FP8 type holds, 448 or 57344; 1 where amax is 0 or not
 * finite.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTEQuantizationConfig} in TE's {@code transformer_engine.h}.
 *
 * @param scales which numbers scales may be
 * @param amaxEpsilon lower bound of amaxes, at least 0
 * @param noop FLOAT32 [1] on the device, read when the kernel runs: 1 leaves everything as it is. Null quantizes always
 */
public record QuantizationConfig(
        Scales scales, float amaxEpsilon, @Nullable Tensor noop) {
    /** Which numbers scales may be. */
    public enum Scales {
        /** Any FP32 number. */
        FLOAT32,
        /** Powers of two: a scale is rounded down to one, so that scaling is exact. */
        POWER_OF_2
    }

    private static final QuantizationConfig STANDARD = new QuantizationConfig(Scales.FLOAT32, 0, null);

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when {@code amaxEpsilon} is negative or not finite
     */
    public QuantizationConfig {
        Checks.given("scales", scales);
        Numbers.notNegative("amaxEpsilon", amaxEpsilon);
    }

    /** Returns FP32 scales, no lower bound, and no flag: TE's defaults. */
    public static QuantizationConfig standard() {
        return STANDARD;
    }

    /** Returns this with other scales. */
    public QuantizationConfig withScales(Scales newScales) {
        return new QuantizationConfig(newScales, amaxEpsilon, noop);
    }

    /**
     * Returns this with another lower bound of amaxes.
     *
     * @throws IllegalArgumentException when it is negative or not finite
     */
    public QuantizationConfig withAmaxEpsilon(float newAmaxEpsilon) {
        return new QuantizationConfig(scales, newAmaxEpsilon, noop);
    }

    /** Returns this with a flag on the device: FLOAT32 [1], where 1 leaves everything as it is. */
    public QuantizationConfig withNoop(Tensor newNoop) {
        return new QuantizationConfig(scales, amaxEpsilon, Checks.given("noop", newNoop));
    }
}
