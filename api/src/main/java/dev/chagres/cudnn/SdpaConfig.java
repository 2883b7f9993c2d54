package dev.chagres.cudnn;

import dev.chagres.internal.Numbers;
import org.jspecify.annotations.Nullable;

/**
 * What attention as one operation depends on besides its tensors.
 *
 * <p>Threading: immutable.
 *
 * @param scale the factor of scores
 * @param queryLengths tokens of each sequence of queries, INT32[B, 1, 1, 1]; null for all
 * @param keyLengths tokens of each sequence of keys, INT32[B, 1, 1, 1]; null for all
 */
public record SdpaConfig(
        float scale,
        @Nullable GraphTensor queryLengths,
        @Nullable GraphTensor keyLengths) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the scale is no finite number, or only one of the lengths is given
     */
    public SdpaConfig {
        Numbers.finite("scale", scale);
        if ((queryLengths == null) != (keyLengths == null)) {
            throw new IllegalArgumentException(
                    "queryLengths, keyLengths: expected both or none, got " + queryLengths + " and " + keyLengths);
        }
    }

    /** All tokens, with this scale. */
    public static SdpaConfig of(float scale) {
        return new SdpaConfig(scale, null, null);
    }

    /** Returns the same for sequences that are shorter than the longest. */
    public SdpaConfig withLengths(GraphTensor queries, GraphTensor keys) {
        return new SdpaConfig(scale, queries, keys);
    }
}
