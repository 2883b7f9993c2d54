package dev.chagres.attention;

import dev.chagres.internal.Checks;

/**
 * Llama 3's scaling of frequencies for contexts longer than those of training. A pair of frequency f makes {@code t = originalPositions f /
 * (2 pi)} turns over the original context. f becomes {@code f / factor} where t is below {@code lowFrequencyFactor}, and stays where t is
 * above {@code highFrequencyFactor}. Between them it becomes {@code (1 - s) f / factor + s f} with {@code s = (t - low) / (high - low)}.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code rope_type="llama3"} of Llama 3.1's published configuration.
 *
 * @param factor how many times slower low frequencies turn, above 0
 * @param lowFrequencyFactor turns below which a frequency is low, above 0
 * @param highFrequencyFactor turns above which a frequency is high, above the low one
 * @param originalPositions longest context of training
 */
public record Llama3Scaling(
        double factor, double lowFrequencyFactor, double highFrequencyFactor, int originalPositions) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is out of its range
     */
    public Llama3Scaling {
        RotaryConfig.positive("factor", factor);
        RotaryConfig.positive("lowFrequencyFactor", lowFrequencyFactor);
        RotaryConfig.positive("highFrequencyFactor", highFrequencyFactor);
        if (highFrequencyFactor <= lowFrequencyFactor) {
            throw new IllegalArgumentException("highFrequencyFactor: expected more than lowFrequencyFactor, "
                    + lowFrequencyFactor + ", got " + highFrequencyFactor);
        }
        Checks.atLeastOne("originalPositions", originalPositions);
    }

    /** Llama 3.1's numbers: 8 times the context of 8,192 positions. */
    public static Llama3Scaling llama31() {
        return new Llama3Scaling(8, 1, 4, 8192);
    }

    double scaled(double frequency) {
        double turns = originalPositions * frequency / (2 * Math.PI);
        if (turns < lowFrequencyFactor) {
            return frequency / factor;
        }
        if (turns > highFrequencyFactor) {
            return frequency;
        }
        double share = (turns - lowFrequencyFactor) / (highFrequencyFactor - lowFrequencyFactor);
        return (1 - share) * frequency / factor + share * frequency;
    }
}
