package dev.chagres.layer;

import dev.chagres.model.ModelPlan;
import dev.chagres.model.QuantizerSite;
import dev.chagres.model.QuantizerSite.Role;
import dev.chagres.recipe.Quantizers;
import dev.chagres.recipe.Recording;
import dev.chagres.te.AttentionScales;
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

    private final @Nullable AttentionScales[] scales = new AttentionScales[Recording.values().length];

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

    AttentionScales scales(Quantizers quantizers, Recording recording) {
        if (known != quantizers) {
            known = quantizers;
            for (Recording each : Recording.values()) {
                scales[each.ordinal()] = of(quantizers, each);
            }
        }
        AttentionScales found = scales[recording.ordinal()];
        return found == null ? of(quantizers, recording) : found;
    }

    private AttentionScales of(Quantizers quantizers, Recording recording) {
        return new AttentionScales(
                quantizers.at(qkv).tensorScale(recording),
                quantizers.at(softmax).tensorScale(recording),
                quantizers.at(output).tensorScale(recording),
                quantizers.at(outputGradient).tensorScale(recording),
                quantizers.at(scoreGradient).tensorScale(recording),
                quantizers.at(qkvGradient).tensorScale(recording));
    }
}
