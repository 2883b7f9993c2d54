package dev.chagres.te;

import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * The scales of the tensors of an attention in eight bits. Query, key and value share a scale, and so do their gradients. Softmax weights
 * and the gradients of scores exist only inside the kernels, which round them to eight bits, too.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the slots of {@code DotProductAttention} in TE for PyTorch; {@code S} and {@code dP} of TE's {@code fused_attn.h}.
 *
 * @param qkv of query, key and value, of which the call reads the scale inverse
 * @param softmax of the softmax weights
 * @param output of the output
 * @param outputGradient of the gradient of the output, of which the call reads the scale inverse; null without backward
 * @param scoreGradient of the gradient of the scores; null without backward
 * @param qkvGradient of the gradients of query, key and value; null without backward
 */
public record AttentionScales(
        TensorScale qkv,
        TensorScale softmax,
        TensorScale output,
        @Nullable TensorScale outputGradient,
        @Nullable TensorScale scoreGradient,
        @Nullable TensorScale qkvGradient) {
    /**
     * Checks that the scales of the forward call are there.
     *
     * @throws NullPointerException when one is not
     */
    public AttentionScales {
        Checks.given("qkv", qkv, "softmax", softmax, "output", output);
    }

    /** Returns the scales of a forward call without backward. */
    public static AttentionScales ofForward(TensorScale qkv, TensorScale softmax, TensorScale output) {
        return new AttentionScales(qkv, softmax, output, null, null, null);
    }
}
