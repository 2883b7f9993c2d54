package dev.chagres.cudnn;

import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * What the forward pass of attention gives; each that is not read must be an output, but for the statistics of {@link AttentionBuilder}.
 *
 * <p>Threading: immutable.
 *
 * @param o results [B, H, Sq, Dv]
 * @param stats the logarithm of each row's sum of exponentials, FLOAT[B, H, Sq, 1], for gradients
 * @param dropped 1 where a weight stays, else 0, FLOAT[B, H, Sq, Skv]; null without dropout
 */
public record SdpaForward(
        GraphTensor o, GraphTensor stats, @Nullable GraphTensor dropped) {
    /** Checks that results and statistics are there. */
    public SdpaForward {
        Checks.given("o", o, "stats", stats);
    }
}
