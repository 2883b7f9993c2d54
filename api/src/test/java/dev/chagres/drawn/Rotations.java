package dev.chagres.drawn;

import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.conformance.TokenRows;
import dev.chagres.witness.RotaryWitness;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** The witnesses of drawn rotations. */
final class Rotations {
    private Rotations() {}

    static RotaryWitness witness(RotaryConfig rotary, TokenRows tokens, List<Integer> starts) {
        double[] frequencies = rotary.frequencies().isEmpty()
                ? RotaryWitness.ofBase(rotary.rotatedDim(), rotary.base())
                : rotary.frequencies().stream().mapToDouble(Double::doubleValue).toArray();
        for (int i = 0; i < frequencies.length; i++) {
            frequencies[i] = scaled(rotary.scaling(), frequencies[i]) / rotary.interpolationFactor();
        }
        List<int[]> rows = tokens.rows();
        int[] first = starts.isEmpty()
                ? new int[rows.size()]
                : starts.stream().mapToInt(Integer::intValue).toArray();
        return new RotaryWitness(rotary.headDim(), frequencies, rotary.pairing(), rows, first);
    }

    /** Llama 3's rule by wavelengths, as its published code has it. */
    private static double scaled(@Nullable Llama3Scaling scaling, double frequency) {
        if (scaling == null) {
            return frequency;
        }
        double wavelength = 2 * Math.PI / frequency;
        if (wavelength > scaling.originalPositions() / scaling.lowFrequencyFactor()) {
            return frequency / scaling.factor();
        }
        if (wavelength < scaling.originalPositions() / scaling.highFrequencyFactor()) {
            return frequency;
        }
        double smooth = (scaling.originalPositions() / wavelength - scaling.lowFrequencyFactor())
                / (scaling.highFrequencyFactor() - scaling.lowFrequencyFactor());
        return (1 - smooth) * frequency / scaling.factor() + smooth * frequency;
    }
}
