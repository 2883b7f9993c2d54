package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
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
