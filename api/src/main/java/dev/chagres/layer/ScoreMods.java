package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.attention.Alibi;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.internal.Checks;
import dev.chagres.ops.AttentionScores;
import dev.chagres.ops.AttentionScores.Alignment;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.pass.SharedInput;
import dev.chagres.te.BiasType;
import dev.chagres.te.SoftmaxType;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The modifications of an attention's scores before the softmax, and those for which cuDNN's kernels are never asked.
 *
 * <p>Threading: the device's thread.
 */
final class ScoreMods {
    /** The modifications of a forward call, for its backward call. */
    static final class Applied {
        final AttentionScores scores = new AttentionScores();
        private final SavedTensor slopes = new SavedTensor("the slopes of ALiBi");
        private final SavedTensor bias = new SavedTensor("the bias of the scores");
        private final SavedTensor mask = new SavedTensor("the mask of the scores");
        private final SavedTensor offset = new SavedTensor("the offset of the softmax");
        private @Nullable SharedInput biases;

        /** Throws if one of the tensors has lost its memory. */
        void check() {
            check(slopes);
            check(bias);
            check(mask);
            check(offset);
        }

        /** Keeps the offset of cuDNN's softmax. */
        void offset(@Nullable Tensor tensor) {
            keep(offset, tensor);
        }

        private static void check(SavedTensor kept) {
            if (!kept.isEmpty()) {
                kept.get();
            }
        }
    }

    private final AttentionConfig config;
    private final TensorParallel ranks;
    /** This rank's part of tensors of all heads: slopes, biases, masks. */
    private final RankHeads slice;
    /** This rank's part of the sinks, which tensor-parallel ranks split. */
    private final RankHeads sinkSlice;
    /** FLOAT32 [h], of the learnable softmax. */
    final @Nullable Parameter sinks;

    private @Nullable Alibi alibi;
    private @Nullable SharedInput biases;
    /** Whether {@link #biases} are pre-scale biases. */
    private boolean preScale;

    ScoreMods(AttentionConfig config, @Nullable ModelPlan plan) {
        this.config = config;
        ranks = plan == null ? TensorParallel.none() : plan.tensorParallel();
        ContextParallel context = plan == null ? ContextParallel.none() : plan.contextParallel();
        slice = new RankHeads(ranks, context, config.heads());
        sinkSlice = new RankHeads(TensorParallel.none(), context, config.heads());
        sinks = plan != null && config.softmaxType() == SoftmaxType.LEARNABLE ? declareSinks(plan) : null;
    }

    private Parameter declareSinks(ModelPlan plan) {
        long heads = sinkSlice.all();
        if (!ranks.isSplit()) {
            return plan.declareAs(DType.FLOAT32, "softmax_offset", Initializer.zeros(), heads);
        }
        long all = heads * ranks.size();
        return plan.declareAs(
                DType.FLOAT32,
                "softmax_offset",
                Initializer.zeros(),
                new ParameterSplit(new Shape(all), 0, List.of(all), ranks.rank(), ranks.size()));
    }

    /** Returns which heads this rank attends with. */
    RankHeads heads() {
        return slice;
    }

    void alibi(Alibi newAlibi) {
        ensureScoresStay("alibi", newAlibi);
        if (Checks.given("alibi", newAlibi).heads() != slice.all()) {
            throw new IllegalArgumentException(
                    "alibi: expected slopes of " + slice.expected() + ", got " + newAlibi.heads() + slice.mend());
        }
        alibi = newAlibi;
    }

    void bias(SharedInput newBiases) {
        Checks.given("biases", newBiases);
        ensureScoresStay("biases", newBiases);
        biases = newBiases;
        preScale = false;
    }

    void preScaleBias(SharedInput newBiases) {
        bias(newBiases);
        preScale = true;
    }

    /** Refuses modifications that depend on a query's position, if a rank has a part of the queries. */
    private void ensureScoresStay(String argument, Object given) {
        if (slice.keepsHeads()) {
            throw new IllegalArgumentException(
                    argument + ": expected none where each rank attends only with its own queries, got " + given
                            + "; ContextParallel.of, which exchanges heads, allows it");
        }
    }

    /** Returns whether backward has something to give, whatever the input. */
    boolean requiresGradient() {
        return biases != null || (sinks != null && !sinks.isFrozen());
    }

    /** Returns the type of bias of cuDNN's kernels, if they compute the call. */
    BiasType biasType() {
        if (biases != null) {
            return BiasType.POST_SCALE_BIAS;
        }
        return alibi == null ? BiasType.NO_BIAS : BiasType.ALIBI;
    }

    /** Returns the bias of all heads; null where there is none, or none yet. */
    @Nullable
    Tensor whole(Pass pass) {
        SharedInput readers = biases;
        return readers == null ? null : readers.latest(pass);
    }

    /** Returns whether nothing is added to scores, and no mask by element hides some. */
    boolean addsNothing(Sequences sequences) {
        return biases == null && alibi == null && sequences.scoreMask() == null;
    }

    /** Returns why cuDNN's kernels are not asked, whatever the lengths; or null. */
    @Nullable
    String never(Sequences sequences) {
        if (config.softcap() > 0) {
            return "TE has no soft cap of the scores";
        }
        if (sequences.scoreMask() != null) {
            return "cuDNN has no mask by element";
        }
        if (biases != null && preScale) {
            return "cuDNN has no bias before the scale";
        }
        Alibi present = alibi;
        if (present == null) {
            return null;
        }
        if (biases != null) {
            return "cuDNN has either ALiBi or a bias";
        }
        if (config.mask().kind() != AttentionMask.Kind.CAUSAL) {
            return "cuDNN has ALiBi only under a top-left causal mask";
        }
        return present.hasUsualSlopes() && slice.all() == config.heads() ? null : "cuDNN's ALiBi takes no slopes";
    }

    /** Returns why scores are not computed in eight bits; null if they are unmodified. */
    @Nullable
    String whyNotQuantized(Sequences sequences) {
        String never = never(sequences);
        if (never != null) {
            return never;
        }
        if (biasType() != BiasType.NO_BIAS) {
            return "cuDNN has neither bias nor ALiBi in eight bits";
        }
        return config.softmaxType() == SoftmaxType.VANILLA
                ? null
                : "cuDNN has a softmax with an extra term in eight bits only from 9.21 on";
    }

    /**
     * Checks slopes, bias and mask of the scores of a forward call; a bias that was not given yet is none.
     *
     * @param dtype of the query
     * @throws IllegalArgumentException when type, sizes or device do not fit
     */
    void check(Sequences sequences, DType dtype, Pass pass) {
        Alibi present = alibi;
        if (present != null) {
            Checks.on(pass.stream(), "alibi", present.slopes());
        }
        Tensor bias = whole(pass);
        if (bias != null) {
            slice.checkScores("bias", bias, dtype, sequences, pass.stream());
        }
        Tensor mask = sequences.scoreMask();
        if (mask != null) {
            slice.checkScores("mask", mask, DType.BYTE, sequences, pass.stream());
        }
    }

    /** Fills in the modifications of one forward call. */
    void apply(Applied applied, Sequences sequences, DType dtype, Pass pass) {
        check(sequences, dtype, pass);
        AttentionScores scores =
                applied.scores.softcap(config.softcap()).biasGradient(null).sinksGradient(null);
        Alibi present = alibi;
        Tensor slopes = present == null ? null : slice.ofVector(present.slopes(), pass);
        SharedInput readers = biases;
        Tensor bias = readers == null ? null : slice.ofScores(readers.tensor(pass), pass);
        Tensor given = sequences.scoreMask();
        Tensor mask = given == null ? null : slice.ofScores(given, pass);
        scores.alibi(slopes, alignment());
        (preScale ? scores.preScaleBias(bias) : scores.bias(bias)).mask(mask);
        scores.softmax(config.softmaxType(), sinks == null ? null : sinkSlice.ofVector(sinks.weight(), pass));
        keep(applied.slopes, slopes);
        keep(applied.bias, bias);
        keep(applied.mask, mask);
        applied.biases = readers;
    }

    private Alignment alignment() {
        return config.mask().kind() == AttentionMask.Kind.CAUSAL ? Alignment.TOP_LEFT : Alignment.BOTTOM_RIGHT;
    }

    private static void keep(SavedTensor kept, @Nullable Tensor tensor) {
        if (tensor == null) {
            kept.clear();
        } else {
            kept.set(tensor);
        }
    }

    /** Allocates the gradients that a backward call writes. */
    void prepareGradients(Applied applied, Pass pass) {
        Tensor bias = applied.scores.bias();
        applied.scores.biasGradient(
                bias != null && bias.requiresGradient() ? pass.temporary().like(bias) : null);
        applied.scores.sinksGradient(
                sinks != null && !sinks.isFrozen() ? pass.temporary().tensor(DType.FLOAT32, config.heads()) : null);
    }

    /** Enqueues the sums of the gradients that a backward call wrote. */
    void addGradients(Applied applied, Pass pass) {
        Tensor bias = applied.scores.biasGradient();
        if (bias != null && applied.biases != null) {
            applied.biases.add(slice.wholeScores(bias, applied.biases.tensor(pass), pass), pass);
        }
        Tensor gradient = applied.scores.sinksGradient();
        if (gradient != null && sinks != null) {
            NormLayer.accumulate(sinks, sinkSlice.wholeVector(gradient, pass), pass);
        }
        applied.scores.biasGradient(null).sinksGradient(null);
    }

    /** Describes the modifications, after the kernels' names. */
    String explain() {
        StringBuilder text = new StringBuilder();
        if (config.softcap() > 0) {
            text.append("; scores capped at ").append(config.softcap());
        }
        if (alibi != null) {
            text.append("; ALiBi");
        }
        if (biases != null) {
            text.append(preScale ? "; bias before the scale of SharedInput " : "; bias of SharedInput ")
                    .append(biases.name())
                    .append(slice.explainSum());
        }
        if (config.softmaxType() != SoftmaxType.VANILLA) {
            text.append("; softmax ").append(config.softmaxType());
        }
        return text.toString();
    }
}
