package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.AttentionPrecision;
import dev.chagres.recipe.Quantizers;
import dev.chagres.te.AttentionScales;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.TensorScale;
import org.jspecify.annotations.Nullable;

/**
 * Decides whether a call of attention is computed in eight bits, and with which scales. If its gradients cannot be, evaluation is not
 * either, so that a model is evaluated with the arithmetic of its training.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code get_attention_backend} of TE for PyTorch.
 */
final class QuantizedAttention {
    /** The only head dimension whose gradients cuDNN computes in eight bits on compute capability 9.0. */
    private static final int HEAD_DIM = 128;

    private final ScoreMods rules;
    private final AttentionProblems problems;
    /** Why no call is computed in eight bits, or null. */
    private final @Nullable String never;
    /** Null if no call is. */
    private final @Nullable AttentionSites sites;

    QuantizedAttention(AttentionConfig config, ScoreMods rules, AttentionProblems problems, @Nullable ModelPlan plan) {
        this.rules = rules;
        this.problems = problems;
        String reason = whyNever(config);
        never = reason == null && plan == null
                ? "the attention was made without a plan, which would hold its scales"
                : reason;
        sites = never == null && plan != null ? new AttentionSites(plan.child("core_attention")) : null;
    }

    private static @Nullable String whyNever(AttentionConfig config) {
        AttentionMask mask = config.mask();
        if (config.headDim() != HEAD_DIM) {
            return "cuDNN has gradients in eight bits only for heads of " + HEAD_DIM + ", not of " + config.headDim();
        }
        if (!config.dropout().isNone()) {
            return "attention weights are dropped";
        }
        if (mask.kind() == AttentionMask.Kind.CAUSAL_BOTTOM_RIGHT) {
            return "cuDNN has a bottom-right mask in eight bits only for compute capability 10.0";
        }
        boolean causal = mask.kind() == AttentionMask.Kind.CAUSAL;
        if (mask.windowLeft() != -1 || (mask.windowRight() != -1 && !(causal && mask.windowRight() == 0))) {
            return "cuDNN has a window in eight bits only from 9.21 on";
        }
        return null;
    }

    /** Returns the places of the scales; only where {@link #quantizers} are not null. */
    AttentionSites sites() {
        AttentionSites present = sites;
        if (present == null) {
            throw new IllegalStateException("there are no scales, for " + never);
        }
        return present;
    }

    /** Returns the recipe's state where this call is computed in eight bits, or null. */
    @Nullable
    Quantizers quantizers(QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        Quantizers present = pass.isCalibrating() ? null : covering(pass);
        return present == null || whyNot(layout, dtype, sequences, present, pass) != null ? null : present;
    }

    /** Returns the recipe's state where the pass calibrates and this call would be in eight bits, or null. */
    @Nullable
    Quantizers calibrated(QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        Quantizers present = pass.isCalibrating() ? covering(pass) : null;
        return present == null || whyNot(layout, dtype, sequences, present, pass) != null ? null : present;
    }

    private @Nullable Quantizers covering(Pass pass) {
        Quantizers present = pass.quantizers();
        AttentionSites places = sites;
        return present != null && places != null && places.areCoveredBy(present) ? present : null;
    }

    /** Makes no garbage if TE was asked before. */
    private @Nullable String whyNot(QkvLayout given, DType dtype, Sequences told, Quantizers present, Pass pass) {
        Sequences sequences = AttentionCalls.attended(told);
        QkvLayout layout = AttentionCalls.attended(given, told);
        if (dtype == DType.FLOAT32) {
            return "query, key and value are FLOAT32";
        }
        if (sequences.format() == QkvFormat.THD) {
            return "cuDNN has packed sequences in eight bits only from 9.23 on";
        }
        String changed = rules.whyNotQuantized(sequences);
        if (changed != null) {
            return changed;
        }
        if (KernelChoice.lacksKeys(sequences)) {
            return "a padded sequence has no keys";
        }
        if (KernelChoice.isSingle(sequences)) {
            return "a sequence has one token";
        }
        return problems.refusal(
                problems.get(layout, sequences.padding(), false),
                present.recipe().format().forward(),
                present.recipe().format().backward(),
                sequences,
                pass.device());
    }

    /** Describes in how many bits attention is computed and why, if the recipe asks for eight; else empty. */
    String explain(QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        Quantizers wanting = pass.quantizers();
        if (wanting == null || wanting.recipe().attention() == AttentionPrecision.HIGH_PRECISION) {
            return "";
        }
        String wanted = wanting.recipe().attention() + " of "
                + wanting.recipe().getClass().getSimpleName();
        if (never != null) {
            return "; not in eight bits by " + wanted + ", for " + never;
        }
        Quantizers present = covering(pass);
        if (present == null) {
            return "; not in eight bits by " + wanted + ", for its group keeps the model's type";
        }
        String reason = whyNot(layout, dtype, sequences, present, pass);
        if (reason != null) {
            return "; not in eight bits by " + wanted + ", for " + reason;
        }
        if (pass.isCalibrating()) {
            return "; not in eight bits by " + wanted + ", for the pass calibrates";
        }
        return "; in eight bits by " + wanted + (pass.device().provider() == Provider.CUDA ? "" : ", as on a GPU");
    }

    /** The six sites of an attention where a recipe rounds to eight bits, and their scales. */
    static final class AttentionSites {
        final QuantizerSite qkv;
        private final QuantizerSite softmax;
        final QuantizerSite output;
        final QuantizerSite outputGradient;
        final QuantizerSite scoreGradient;
        final QuantizerSite qkvGradient;
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

        /** Returns whether the recipe computes this attention in eight bits. */
        boolean areCoveredBy(Quantizers quantizers) {
            return quantizers.covers(qkv);
        }

        /** Returns the scales of a call, which writes its amaxes where none is recorded: {@link QuantizedCopies#raiseAmax} records them. */
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
}
