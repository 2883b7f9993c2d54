package dev.chagres.attention;

import dev.chagres.Dropout;
import dev.chagres.internal.Checks;

/**
 * What an attention module computes: {@code softmax(scale q k^T + mask) v} for each head.
 *
 * <p>Threading: immutable.
 *
 * @param heads query heads h
 * @param headDim size d of a head: a multiple of 8, at most 256, which is what the kernels take
 * @param mask which keys a query sees
 * @param dropout of attention weights
 * @param scale factor on query times key, usually {@code 1 / sqrt(d)}
 */
public record AttentionConfig(int heads, int headDim, AttentionMask mask, Dropout dropout, float scale) {
    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when a size is not positive, or no kernel takes the head dimension
     */
    public AttentionConfig {
        Checks.given("mask", mask);
        Checks.given("dropout", dropout);
        if (heads < 1) {
            throw new IllegalArgumentException("heads: expected at least 1, got " + heads);
        }
        if (headDim < 8 || headDim > 256 || headDim % 8 != 0) {
            throw new IllegalArgumentException(
                    "headDim: expected a multiple of 8 from 8 to 256, which attention's kernels take, got " + headDim);
        }
        if (!(scale > 0) || Float.isInfinite(scale)) {
            throw new IllegalArgumentException("scale: expected a positive number, got " + scale);
        }
    }

    /** Attention scaled by {@code 1 / sqrt(headDim)}. */
    public static AttentionConfig of(int heads, int headDim, AttentionMask mask, Dropout dropout) {
        return new AttentionConfig(heads, headDim, mask, dropout, (float) (1 / Math.sqrt(Math.max(1, headDim))));
    }
}
