package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Checks;
import dev.chagres.layer.KernelChoice.AttentionKernels;
import dev.chagres.ops.Attention;
import dev.chagres.ops.AttentionPlace;
import dev.chagres.ops.AttentionPlace.Diagonal;
import dev.chagres.pass.Pass;
import dev.chagres.pass.SavedTensor;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionProblem.Order;
import dev.chagres.te.AttentionScales;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import dev.chagres.te.QkvLayout.Packing;
import org.jspecify.annotations.Nullable;

/**
 * The calls of attention's kernels: cuDNN's or our own, as {@link KernelChoice} says, and cuDNN's graphs of a soft cap instead of our own.
 *
 * <p>Threading: the device's thread.
 */
record AttentionCalls(
        AttentionConfig config,
        AttentionProblems problems,
        ScoreMods rules,
        FusedScoreMods scores,
        CappedAttention capped) {
    /** cuDNN builds a kernel plan for each longest length; rounding up keeps them few. */
    private static final long LENGTH_STEP = 128;

    /** Counter values that one call of cuDNN's kernels may draw: TE advances its offset by this in each call. */
    static final int DRAWN_AT_MOST = 16;

    /** Bytes of workspace that cuDNN's deterministic backward needs for each score of packed sequences. */
    private static final long DETERMINISTIC_BYTES = 128;

    /** Bytes of a score's gradient in cuDNN's workspace. */
    private static final long SCORE_BYTES = 2;

    /** Lengths are rounded up to multiples of this there. */
    private static final long SCORE_TILE = 64;

    /**
     * Enqueues attention, and notes in {@code record} what backward needs. Packed sequences that are all equally long are computed as dense
     * ones: cuDNN's kernels are then faster, and fewer cases are lacking.
     *
     * @param scales of tensors in eight bits; null of others
     */
    void forward(
            QkvLayout given,
            Tensor q,
            Tensor k,
            Tensor v,
            Tensor output,
            Sequences told,
            @Nullable AttentionScales scales,
            SavedAttention record,
            Pass pass) {
        Sequences sequences = attended(told);
        QkvLayout layout = attended(given, told);
        AttentionKernels kernels = scales == null
                ? KernelChoice.attention(scores, layout, q.dtype(), sequences, pass)
                : AttentionKernels.FUSED;
        record.capped = kernels == AttentionKernels.TILED && capped.refusal(layout, q.dtype(), sequences, pass) == null;
        boolean drops = pass.isTraining() && !config.dropout().isNone();
        AttentionProblem problem = kernels == AttentionKernels.FUSED
                ? scores.problem(layout, sequences, drops)
                : problems.get(layout, sequences.padding(), drops);
        Tensor offsets = sequences.cuSeqlens().offsets();
        Tensor keyOffsets = sequences.keys().cuSeqlens().offsets();
        Scope kept = pass.kept();
        AttentionTensors tensors = record.tensors
                .query(shaped(kept, q, told, sequences))
                .key(shaped(kept, k, told, sequences))
                .value(shaped(kept, v, told, sequences))
                .output(shaped(kept, output, told, sequences))
                .queryLengths(offsets, longest(sequences, kernels))
                .keyLengths(keyOffsets, longest(sequences.keys(), kernels))
                .starts(starts(sequences), starts(sequences.keys()))
                .rngState(drops ? draw(kernels, pass) : null)
                .scales(scales);
        Tensor statistics = statistics(q, sequences, kept);
        tensors.statistics(statistics);
        rules.apply(record.applied, sequences, q.dtype(), pass);
        switch (kernels) {
            case FUSED -> {
                KernelChoice.keepKeys(sequences, pass.stream());
                scores.apply(record.applied, tensors, pass);
                FusedAttention.forward(problem, tensors, pass.stream());
            }
            case TILED -> {
                FusedScoreMods.clear(tensors);
                place(record.place, sequences);
                if (record.capped) {
                    capped.forward(tensors, sequences, pass);
                } else {
                    Attention.forward(problem, tensors, record.applied.scores, record.place, pass.stream());
                }
            }
        }
        record.query.set(q);
        record.key.set(k);
        record.value.set(v);
        record.output.set(output);
        record.statistics.set(statistics);
        record.offsets.set(offsets);
        record.keyOffsets.set(keyOffsets);
        keep(record.starts, tensors.queryStarts());
        keep(record.keyStarts, tensors.keyStarts());
        record.problem = problem;
        record.sequences = told;
        record.attended = sequences;
        record.kernels = kernels;
    }

    /** Enqueues the gradients of the forward call of {@code record}. */
    void backward(SavedAttention record, Tensor dO, Tensor dq, Tensor dk, Tensor dv, Pass pass) {
        AttentionProblem problem = Checks.given("problem", record.problem);
        Sequences told = Checks.given("sequences", record.sequences);
        Sequences sequences = Checks.given("attended", record.attended);
        Scope temporary = pass.temporary();
        AttentionTensors tensors = record.tensors
                .outputGradient(shaped(temporary, dO, told, sequences))
                .queryGradient(shaped(temporary, dq, told, sequences))
                .keyGradient(shaped(temporary, dk, told, sequences))
                .valueGradient(shaped(temporary, dv, told, sequences));
        switch (record.kernels) {
            case FUSED -> {
                scores.prepareGradients(record.applied, tensors, pass);
                FusedAttention.backward(problem, tensors, pass.stream());
            }
            case TILED -> {
                Tensor delta = temporary.like(record.statistics.get());
                rules.prepareGradients(record.applied, pass);
                if (!record.capped || !capped.backward(tensors, delta, sequences, pass)) {
                    Attention.backward(problem, tensors, record.applied.scores, record.place, delta, pass.stream());
                }
            }
        }
        rules.addGradients(record.applied, pass);
    }

    /** Returns the sequences as kernels are told them: packed ones that are all equally long as dense ones. */
    static Sequences attended(Sequences sequences) {
        Sequences dense = sequences.asDense();
        return dense == null ? sequences : dense;
    }

    /** Returns the layout of buffers over sequences as kernels are told it, likewise. */
    static QkvLayout attended(QkvLayout given, Sequences sequences) {
        if (sequences.asDense() == null) {
            return given;
        }
        return given.packing() == Packing.ALL ? QkvLayout.packed(QkvFormat.BSHD) : QkvLayout.separate(QkvFormat.BSHD);
    }

    /** Returns [T, h, d] as the sequences that kernels are told. */
    private static Tensor shaped(Scope scope, Tensor tensor, Sequences told, Sequences sequences) {
        return sequences == told
                ? tensor
                : AttentionInputs.shaped(
                        scope, tensor, 0, Math.toIntExact(tensor.size(1)), Math.toIntExact(tensor.size(2)), sequences);
    }

    /**
     * Returns the random state of a call. Our own kernels draw for the numbers that heads and queries have among those of all ranks; cuDNN's
     * count them from 0, so each rank draws from a place of its own.
     */
    private Tensor draw(AttentionKernels kernels, Pass pass) {
        return kernels == AttentionKernels.TILED
                ? pass.draw()
                : pass.draw(Math.toIntExact(DRAWN_AT_MOST * rules.heads().drawer()));
    }

    /** Sets the positions of the queries of a {@link dev.chagres.attention.PackedChunk} in their sequences, whose keys are all there. */
    private void place(AttentionPlace place, Sequences sequences) {
        RankHeads heads = rules.heads();
        boolean part = sequences.part() >= 0;
        Tensor numbers = sequences.sequenceNumbers();
        place.heads(heads.all(), heads.first())
                .sequences(numbers)
                .firstQueries(part || numbers != null ? sequences.startPositions() : null)
                .diagonal(part ? Diagonal.BY_PLACE : Diagonal.BY_MASK);
    }

    private static void keep(SavedTensor kept, @Nullable Tensor tensor) {
        if (tensor == null) {
            kept.clear();
        } else {
            kept.set(tensor);
        }
    }

    private static @Nullable Tensor starts(Sequences side) {
        CuSeqlens padded = side.cuSeqlensPadded();
        return padded == null ? null : padded.offsets();
    }

    /** Returns a length that no sequence exceeds, as the kernels want it. */
    static long longest(Sequences sequences, AttentionKernels kernels) {
        long length = sequences.length();
        return sequences.format() == QkvFormat.THD && kernels == AttentionKernels.FUSED
                ? Math.max(LENGTH_STEP, (length + LENGTH_STEP - 1) / LENGTH_STEP * LENGTH_STEP)
                : length;
    }

    /** FLOAT32 [T, h, 1] packed, [B, h, S, 1] dense. */
    private Tensor statistics(Tensor q, Sequences sequences, Scope scope) {
        return sequences.format() == QkvFormat.THD
                ? scope.tensor(DType.FLOAT32, q.size(0), config.heads(), 1)
                : scope.tensor(DType.FLOAT32, sequences.batch(), config.heads(), sequences.length(), 1);
    }

    /** Returns which kernels compute inputs of this type over these sequences, why not the others, and what they do. */
    String explain(DType dtype, Sequences told, Pass pass) {
        Sequences sequences = attended(told);
        QkvLayout layout = QkvLayout.separate(sequences.format());
        boolean fused = KernelChoice.attention(scores, layout, dtype, sequences, pass) == AttentionKernels.FUSED;
        String notCapped = capped.refusal(layout, dtype, sequences, pass);
        boolean graph = !fused && notCapped == null;
        boolean saysWhyNot = !fused && !graph && config.softcap() > 0 && dtype != DType.FLOAT32;
        return "attention by "
                + (graph
                        ? capped.explain(sequences)
                        : KernelChoice.attentionReason(scores, layout, dtype, sequences, pass))
                + (saysWhyNot ? ", and " + notCapped : "")
                + (sequences == told ? "" : "; dense, for all sequences have " + sequences.length() + " tokens")
                + rules.explain()
                + (fused && !config.dropout().isNone() ? rules.heads().explainDropout() : "")
                + (fused && pass.device().provider() == Provider.CUDA ? order(sequences) + workspace(sequences) : "");
    }

    /** Describes cuDNN's workspace for the gradient of a bias: gradients of all scores, in 16 bits. */
    private String workspace(Sequences sequences) {
        if (!rules.biasType().isTensor()) {
            return "";
        }
        long scoreCount = sequences.batch()
                * config.heads()
                * roundedUp(sequences.length())
                * roundedUp(sequences.keys().length());
        return "; backward wants about " + SCORE_BYTES * scoreCount
                + " bytes of workspace for the gradient of the bias";
    }

    private static long roundedUp(long length) {
        return (length + SCORE_TILE - 1) / SCORE_TILE * SCORE_TILE;
    }

    /** Describes cuDNN's workspace for deterministic sums in backward. */
    private String order(Sequences sequences) {
        if (config.order() == Order.FASTEST) {
            return "; gradients may differ in their last bits from call to call";
        }
        long queryLength = longest(sequences, AttentionKernels.FUSED);
        long keyLength = longest(sequences.keys(), AttentionKernels.FUSED);
        return "; the same bits each time"
                + (sequences.format() == QkvFormat.THD
                        ? ", for which backward wants about "
                                + DETERMINISTIC_BYTES * sequences.batch() * config.heads() * queryLength * keyLength
                                + " bytes of workspace"
                        : "");
    }
}
