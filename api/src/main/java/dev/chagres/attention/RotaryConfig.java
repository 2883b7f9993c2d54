package dev.chagres.attention;

import dev.chagres.internal.Checks;
import dev.chagres.te.FusedRope.Pairing;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What a rotation turns, and how fast: pair i of a head's first r elements turns by {@code frequency(i)} from one position to
 * the next. {@link #of} has RoFormer's values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code RotaryPositionEmbedding}, with its names in brackets below.
 *
 * @param headDim size d of a head [dim], even
 * @param rotatedDim r, even: the first elements of a head that are rotated [dim times rotary_percent]
 * @param pairing which two elements are a pair [interleaved]
 * @param base of the frequencies {@code base^(-2 i / r)} [rotary_base], above 0
 * @param frequencies r/2 given ones in the place of the base's; empty: the base's
 * @param interpolationFactor what positions are divided by [seq_len_interpolation_factor], above 0
 * @param scaling what becomes of the frequencies in longer contexts; null: they stay
 */
public record RotaryConfig(
        int headDim,
        int rotatedDim,
        Pairing pairing,
        double base,
        List<Double> frequencies,
        double interpolationFactor,
        @Nullable Llama3Scaling scaling) {
    private static final double BASE = 10_000;

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is out of its range
     */
    public RotaryConfig {
        Checks.given("pairing", pairing);
        frequencies = Checks.givenAll("frequencies", frequencies);
        if (headDim < 2 || headDim % 2 != 0) {
            throw new IllegalArgumentException("headDim: expected a positive even number, got " + headDim);
        }
        if (rotatedDim < 2 || rotatedDim > headDim || rotatedDim % 2 != 0) {
            throw new IllegalArgumentException("rotatedDim: expected an even number from 2 to the head dimension "
                    + headDim + ", got " + rotatedDim);
        }
        positive("base", base);
        positive("interpolationFactor", interpolationFactor);
        if (!frequencies.isEmpty() && frequencies.size() != rotatedDim / 2) {
            throw new IllegalArgumentException("frequencies: expected " + rotatedDim / 2 + ", one of each pair of "
                    + rotatedDim + " elements, got " + frequencies.size());
        }
        for (double frequency : frequencies) {
            if (!Double.isFinite(frequency)) {
                throw new IllegalArgumentException("frequencies: expected finite numbers, got " + frequency);
            }
        }
    }

    static void positive(String argument, double value) {
        if (!(value > 0) || Double.isInfinite(value)) {
            throw new IllegalArgumentException(argument + ": expected a finite number above 0, got " + value);
        }
    }

    /** Whole heads of {@code headDim} elements, by halves, with base 10,000. */
    public static RotaryConfig of(int headDim) {
        return new RotaryConfig(headDim, headDim, Pairing.HALVES, BASE, List.of(), 1, null);
    }

    /** Returns the same with another base. */
    public RotaryConfig withBase(double newBase) {
        return new RotaryConfig(headDim, rotatedDim, pairing, newBase, frequencies, interpolationFactor, scaling);
    }

    /** Returns the same with given frequencies, one of each pair, in radians from a position to the next. */
    public RotaryConfig withFrequencies(List<Double> newFrequencies) {
        return new RotaryConfig(headDim, rotatedDim, pairing, base, newFrequencies, interpolationFactor, scaling);
    }

    /** Returns the same with the first {@code newRotatedDim} elements of a head rotated alone. */
    public RotaryConfig withRotatedDim(int newRotatedDim) {
        return new RotaryConfig(headDim, newRotatedDim, pairing, base, frequencies, interpolationFactor, scaling);
    }

    /** Returns the same with other pairs. */
    public RotaryConfig withPairing(Pairing newPairing) {
        return new RotaryConfig(headDim, rotatedDim, newPairing, base, frequencies, interpolationFactor, scaling);
    }

    /** Returns the same with positions divided by {@code factor}: linear interpolation of a longer context. */
    public RotaryConfig withInterpolation(double factor) {
        return new RotaryConfig(headDim, rotatedDim, pairing, base, frequencies, factor, scaling);
    }

    /** Returns the same with frequencies scaled as Llama 3 does. */
    public RotaryConfig withScaling(Llama3Scaling newScaling) {
        return new RotaryConfig(
                headDim,
                rotatedDim,
                pairing,
                base,
                frequencies,
                interpolationFactor,
                Checks.given("scaling", newScaling));
    }

    /** Returns whether neighbours are pairs. */
    boolean isInterleaved() {
        return pairing == Pairing.INTERLEAVED;
    }

    /** Returns the radians that each pair turns from a position to the next. */
    double[] angularFrequencies() {
        double[] all = new double[rotatedDim / 2];
        for (int i = 0; i < all.length; i++) {
            double frequency = frequencies.isEmpty() ? Math.pow(base, -2.0 * i / rotatedDim) : frequencies.get(i);
            Llama3Scaling present = scaling;
            all[i] = (present == null ? frequency : present.scaled(frequency)) / interpolationFactor;
        }
        return all;
    }
}
