package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.attention.Sequences;
import dev.chagres.pass.Pass;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.BiasType;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.SoftmaxType;
import org.jspecify.annotations.Nullable;

/**
 * Whether cuDNN's kernels support the modifications of scores that {@link ScoreMods} asks for, and their arguments.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code get_attention_backend} of TE for PyTorch.
 */
record FusedScoreMods(AttentionConfig config, ScoreMods rules, AttentionProblems problems) {
    /** Kernels need tensors aligned to multiples of this many bytes. */
    private static final long ALIGNMENT = 16;

    /** Returns whether anything is done with scores. */
    boolean isPlain(Sequences sequences) {
        return rules.never(sequences) == null
                && rules.biasType() == BiasType.NO_BIAS
                && config.softmaxType() == SoftmaxType.VANILLA;
    }

    /**
     * Returns why cuDNN's kernels do not support the modifications of scores, or null. TE's answers are cached, so that later calls make no
     * garbage. TE is not asked about self-attention with unmodified scores and without dropout, which it never refuses.
     */
    @Nullable
    String refusal(QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        String never = rules.never(sequences);
        if (never != null
                || (isPlain(sequences) && sequences.isSelf() && config.dropout().isNone())) {
            return never;
        }
        Tensor bias = rules.whole(pass);
        String reason = whyNot(bias);
        if (reason != null) {
            return reason;
        }
        if (bias != null && !fits(bias, dtype, sequences)) {
            return "cuDNN takes only a bias of exactly the padded lengths that begins at a multiple of 16 bytes";
        }
        boolean biased = rules.biasType().isTensor();
        return problems.refusal(
                problem(layout, sequences, !config.dropout().isNone()),
                dtype,
                dtype,
                sequences,
                biased ? (bias == null ? 1 : bias.size(0)) : 0,
                biased ? (bias == null || bias.size(1) > 1 ? config.heads() : 1) : 0,
                pass.device());
    }

    /** Cases that TE accepts, but computes differently. */
    private @Nullable String whyNot(@Nullable Tensor bias) {
        if (config.softmaxType() == SoftmaxType.LEARNABLE && !config.dropout().isNone()) {
            return "cuDNN leaves the factor of dropout out of the gradients of sinks";
        }
        if (config.order() == Order.DETERMINISTIC) {
            if (config.softmaxType() != SoftmaxType.VANILLA) {
                return "cuDNN sums the gradients of sinks in varying order";
            }
            if (bias != null && bias.requiresGradient()) {
                return "cuDNN sums the gradient of a bias in varying order";
            }
        }
        return null;
    }

    /** TE takes the row strides from the lengths; a bias that does not fit at all is refused by the other kernels. */
    private static boolean fits(Tensor bias, DType dtype, Sequences sequences) {
        return bias.dtype() == dtype
                && bias.rank() == 4
                && (bias.size(0) == 1 || bias.size(0) == sequences.batch())
                && bias.size(2) == sequences.length()
                && bias.size(3) == sequences.keys().length()
                && isAligned(bias);
    }

    private static boolean isAligned(Tensor tensor) {
        return tensor.address() % ALIGNMENT == 0;
    }

    /** Returns the problem that cuDNN's kernels compute. */
    AttentionProblem problem(QkvLayout layout, Sequences sequences, boolean drops) {
        return problems.get(layout, sequences.padding(), drops, rules.biasType());
    }

    /** Names what a forward call of cuDNN's kernels reads beside query, key and value. */
    void apply(ScoreMods.Applied applied, AttentionTensors tensors, Pass pass) {
        tensors.bias(rules.biasType().isTensor() ? applied.scores.bias() : null);
        Tensor offset = switch (config.softmaxType()) {
            case VANILLA -> null;
            case OFF_BY_ONE -> zeros(pass);
            case LEARNABLE -> aligned(applied.scores.sinks(), pass);
        };
        tensors.softmaxOffset(offset);
        applied.offset(offset);
    }

    /** Returns the same numbers where kernels can read them: a rank's sinks may begin among those of all. */
    private static @Nullable Tensor aligned(@Nullable Tensor sinks, Pass pass) {
        if (sinks == null || isAligned(sinks)) {
            return sinks;
        }
        Tensor copy = pass.kept().like(sinks);
        copy.copyFrom(pass.stream(), sinks);
        return copy;
    }

    private Tensor zeros(Pass pass) {
        Tensor offset = pass.kept().tensor(DType.FLOAT32, config.heads());
        offset.zero(pass.stream());
        return offset;
    }

    /** Allocates what a backward call of cuDNN's kernels writes, whether it is needed or not. */
    void prepareGradients(ScoreMods.Applied applied, AttentionTensors tensors, Pass pass) {
        rules.prepareGradients(applied, pass);
        Tensor bias = tensors.bias();
        Tensor biasGradient = applied.scores.biasGradient();
        tensors.biasGradient(
                bias == null || biasGradient != null
                        ? biasGradient
                        : pass.temporary().like(bias));
        Tensor offset = tensors.softmaxOffset();
        Tensor sinksGradient = applied.scores.sinksGradient();
        tensors.softmaxOffsetGradient(
                offset == null || sinksGradient != null
                        ? sinksGradient
                        : pass.temporary().tensor(DType.FLOAT32, config.heads()));
    }

    /** Removes modifications of scores from {@code tensors}, for our own kernels. */
    static void clear(AttentionTensors tensors) {
        tensors.bias(null).biasGradient(null).softmaxOffset(null).softmaxOffsetGradient(null);
    }
}
