package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RingSequences;
import dev.chagres.attention.RingSequences.Block;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.KernelChoice.AttentionKernels;
import dev.chagres.ops.Attention;
import dev.chagres.ops.AttentionPlace;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import org.jspecify.annotations.Nullable;

/**
 * Attention of some queries over some keys of the same sequences, by the kernels that {@link KernelChoice} chooses: keys of the same tokens
 * under the mask, of other tokens all.
 *
 * <p>Threading: the device's thread.
 */
final class RingBlocks {
    private static final QkvLayout LAYOUT = QkvLayout.separate(QkvFormat.THD);

    private final ScoreMods rules;
    private final FusedScoreMods ownScores;
    private final FusedScoreMods otherScores;
    private final ScoreMods.Applied applied = new ScoreMods.Applied();
    /** The tensors of the next call for the caller to set: queries, keys, values, output and statistics first. */
    final AttentionTensors tensors = new AttentionTensors();

    private final AttentionPlace place = new AttentionPlace();
    private final RankHeads heads;
    /** The most blocks that a rank may have. */
    private final int most;

    RingBlocks(AttentionConfig config, ModelPlan plan) {
        AttentionConfig others = config.withMask(AttentionMask.none());
        rules = new ScoreMods(config, null);
        ownScores = new FusedScoreMods(config, rules, new AttentionProblems(config));
        otherScores = new FusedScoreMods(others, rules, new AttentionProblems(others));
        ContextParallel ranks = plan.contextParallel();
        heads = new RankHeads(plan.tensorParallel(), ranks, config.heads());
        most = ranks.chunks() * ranks.chunks() * ranks.size();
    }

    /**
     * Draws for the blocks of a forward call: returns the random state of each, INT64 [blocks, 2], or null without dropout. Our own kernels
     * drop what one rank drops; cuDNN's count queries and keys from 0, so each block has its own offset.
     *
     * @param dtype of the query
     */
    @Nullable
    Tensor draw(RingSequences sequences, DType dtype, Pass pass) {
        if (!pass.isTraining() || ownScores.config().dropout().isNone()) {
            return null;
        }
        Scope kept = pass.kept();
        pass.beginDraw();
        Tensor states = kept.tensor(DType.INT64, sequences.blocks(), 2);
        for (int i = 0; i < sequences.blocks(); i++) {
            boolean fused = kernels(sequences.block(i), dtype, pass) == AttentionKernels.FUSED;
            long number = fused ? heads.drawer() * most + i : 0;
            pass.writeDraw(state(states, i, kept), Math.toIntExact(AttentionCalls.DRAWN_AT_MOST * number));
        }
        return states;
    }

    private static Tensor state(Tensor states, int block, Scope views) {
        return views.view(states, 2L * block, 2);
    }

    /**
     * Enqueues the output and the log-sum-exp of a block.
     *
     * @param states what {@link #draw} returned
     * @param views hands out views
     */
    void forward(Block block, @Nullable Tensor states, Scope views, Pass pass) {
        AttentionProblem problem = problem(block, states);
        switch (prepare(block, states, views, pass)) {
            case FUSED -> FusedAttention.forward(problem, tensors, pass.stream());
            case TILED -> Attention.forward(problem, tensors, applied.scores, place, pass.stream());
        }
    }

    /**
     * Enqueues the gradients of a block, of output and log-sum-exp over all keys.
     *
     * @param states what {@link #draw} returned
     * @param delta like the statistics, scratch
     * @param views hands out views
     */
    void backward(Block block, @Nullable Tensor states, Tensor delta, Scope views, Pass pass) {
        AttentionProblem problem = problem(block, states);
        switch (prepare(block, states, views, pass)) {
            case FUSED -> FusedAttention.backward(problem, tensors, pass.stream());
            case TILED -> Attention.backward(problem, tensors, applied.scores, place, delta, pass.stream());
        }
    }

    private AttentionKernels prepare(Block block, @Nullable Tensor states, Scope views, Pass pass) {
        Sequences sequences = block.sequences();
        AttentionKernels kernels = kernels(block, tensors.query().dtype(), pass);
        tensors.queryLengths(sequences.cuSeqlens().offsets(), AttentionCalls.longest(sequences, kernels))
                .keyLengths(sequences.keys().cuSeqlens().offsets(), AttentionCalls.longest(sequences.keys(), kernels))
                .starts(null, null)
                .rngState(states == null ? null : state(states, block.index(), views));
        rules.apply(applied, sequences, tensors.query().dtype(), pass);
        if (states != null) {
            place.heads(heads.all(), heads.first())
                    .sequences(block.sequenceNumbers(views))
                    .firstQueries(block.firstQueries(views))
                    .firstKeys(block.firstKeys(views));
        } else {
            place.heads(0, 0).sequences(null).firstQueries(null).firstKeys(null);
        }
        return kernels;
    }

    /** The only modification of scores that a ring supports is the soft cap, which cuDNN's kernels never do. */
    private AttentionKernels kernels(Block block, DType dtype, Pass pass) {
        FusedScoreMods scores = block.isOwn() ? ownScores : otherScores;
        return KernelChoice.attention(scores, LAYOUT, dtype, block.sequences(), pass);
    }

    private AttentionProblem problem(Block block, @Nullable Tensor states) {
        FusedScoreMods scores = block.isOwn() ? ownScores : otherScores;
        return scores.problems().get(LAYOUT, Sequences.Padding.BY_LENGTHS, states != null);
    }
}
