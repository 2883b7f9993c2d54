package dev.chagres.layer;

import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.AttentionScales;
import dev.chagres.te.TensorScale;
import org.jspecify.annotations.Nullable;

/**
 * The six sites of an attention where a recipe rounds to eight bits, and their scales.
 *
 * <p>Threading: the device's thread.
 */
final class AttentionSites {
    private final QuantizerSite qkv;
    private final QuantizerSite softmax;
    private final QuantizerSite output;
    private final QuantizerSite outputGradient;
    private final QuantizerSite scoreGradient;
    private final QuantizerSite qkvGradient;
    /** The quantizers whose scales were asked for last. */
    private @Nullable Quantizers known;

    private @Nullable AttentionScales scales;

    AttentionSites(ModelPlan plan) {
        qkv = plan.quantizer("qkv", Role.ATTENTION);
        softmax = plan.quantizer("softmax", Role.ATTENTION_WEIGHTS);
        output = plan.quantizer("output", Role.ATTENTION);
        outputGradient = plan.quantizer("output_gradient", Role.ATTENTION_GRADIENT);
        scoreGradient = plan.quantizer("score_gradient", Role.ATTENTION_GRADIENT);
        qkvGradient = plan.quantizer("qkv_gradient", Role.ATTENTION_GRADIENT);
    }

    /** Returns the place of query, key and value. */
    QuantizerSite qkv() {
        return qkv;
    }

    /** Returns the place of the output. */
    QuantizerSite output() {
        return output;
    }

    /** Returns the place of the gradient of the output. */
    QuantizerSite outputGradient() {
        return outputGradient;
    }

    /** Returns the place of the gradients of query, key and value. */
    QuantizerSite qkvGradient() {
        return qkvGradient;
    }

    /** Returns whether the recipe computes this attention in eight bits. */
    boolean areCoveredBy(Quantizers quantizers) {
        return quantizers.covers(qkv);
    }

    /** Returns the place of the gradients of scores. */
    QuantizerSite scoreGradient() {
        return scoreGradient;
    }

    /** Returns the scales of a call, which writes its amaxes where none is recorded: {@link LargestMagnitude} records them. */
    AttentionScales scales(Quantizers quantizers) {
        AttentionScales present = scales;
        if (known != quantizers || present == null) {
            present = new AttentionScales(
                    scale(quantizers, qkv),
                    scale(quantizers, softmax),
                    scale(quantizers, output),
                    scale(quantizers, outputGradient),
                    scale(quantizers, scoreGradient),
                    scale(quantizers, qkvGradient));
            known = quantizers;
            scales = present;
        }
        return present;
    }

    private static TensorScale scale(Quantizers quantizers, QuantizerSite site) {
        return quantizers.at(site).tensorScale(AmaxRecording.OFF);
    }
}
