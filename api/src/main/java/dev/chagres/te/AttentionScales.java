package dev.chagres.te;

import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * What scales the tensors of an attention in eight bits. Query, key and value share a scale, and so do their gradients; softmax
 * weights and the gradients of scores live inside the kernels alone, but are rounded to eight bits there, too.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the slots of {@code DotProductAttention} in TE for PyTorch; {@code S} and {@code dP} of TE's {@code fused_attn.h}.
 *
 * @param qkv of query, key and value, of which the call reads the scale inverse
 * @param softmax of the softmax weights
 * @param output of the output
 * @param outputGradient of the gradient of the output, of which the call reads the scale inverse; null where no backward comes
 * @param scoreGradient of the gradient of the scores; null where no backward comes
 * @param qkvGradient of the gradients of query, key and value; null where no backward comes
 */
public record AttentionScales(
        TensorScale qkv,
        TensorScale softmax,
        TensorScale output,
        @Nullable TensorScale outputGradient,
        @Nullable TensorScale scoreGradient,
        @Nullable TensorScale qkvGradient) {
    /**
     * Checks that those of the forward call are there.
     *
     * @throws NullPointerException when one is not
     */
    public AttentionScales {
        Checks.given("qkv", qkv);
        Checks.given("softmax", softmax);
        Checks.given("output", output);
    }

    /** Those of a forward call that no backward call follows. */
    public static AttentionScales ofForward(TensorScale qkv, TensorScale softmax, TensorScale output) {
        return new AttentionScales(qkv, softmax, output, null, null, null);
    }
}
