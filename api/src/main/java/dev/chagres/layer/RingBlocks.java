package dev.chagres.layer;

import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RingSequences.Block;
import dev.chagres.attention.Sequences;
import dev.chagres.layer.KernelChoice.AttentionKernels;
import dev.chagres.ops.Attention;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.FusedAttention;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;

/**
 * Attention of some queries over some keys of the same sequences, by the kernels that {@link KernelChoice} says: of the same tokens by the
 * mask, of others all.
 *
 * <p>Threading: the device's thread.
 */
final class RingBlocks {
    private static final QkvLayout LAYOUT = QkvLayout.separate(QkvFormat.THD);

    private final AttentionConfig own;
    private final AttentionConfig others;
    private final ScoreRules rules;
    private final AttentionProblems ownProblems;
    private final AttentionProblems otherProblems;
    private final FusedScores scores;
    private final ScoreRules.Applied applied = new ScoreRules.Applied();
    private final AttentionTensors tensors = new AttentionTensors();

    RingBlocks(AttentionConfig config) {
        own = config;
        others = config.withMask(AttentionMask.none());
        rules = new ScoreRules(config, null);
        ownProblems = new AttentionProblems(own);
        otherProblems = new AttentionProblems(others);
        scores = new FusedScores(own, rules, ownProblems, new AttentionAnswers(own));
    }

    /** Returns what the next call reads and writes, for the caller to name: queries, keys, values, output and statistics first. */
    AttentionTensors tensors() {
        return tensors;
    }

    /** Enqueues the output and the log-sum-exp of a block. */
    void forward(Block block, Pass pass) {
        switch (prepare(block, pass)) {
            case FUSED -> FusedAttention.forward(problem(block), tensors, pass.stream());
            case TILED -> Attention.forward(problem(block), tensors, applied.scores(), pass.stream());
        }
    }

    /**
     * Enqueues the gradients of a block, of output and log-sum-exp over all keys.
     *
     * @param delta like the statistics, scratch
     */
    void backward(Block block, Tensor delta, Pass pass) {
        switch (prepare(block, pass)) {
            case FUSED -> FusedAttention.backward(problem(block), tensors, pass.stream());
            case TILED -> Attention.backward(problem(block), tensors, applied.scores(), delta, pass.stream());
        }
    }

    private AttentionKernels prepare(Block block, Pass pass) {
        Sequences sequences = block.sequences();
        AttentionKernels kernels = kernels(block, tensors.query(), pass);
        tensors.queryLengths(sequences.cuSeqlens().offsets(), AttentionCalls.longest(sequences, kernels))
                .keyLengths(sequences.keys().cuSeqlens().offsets(), AttentionCalls.longest(sequences.keys(), kernels))
                .starts(null, null)
                .rngState(null);
        rules.apply(applied, sequences, tensors.query().dtype(), pass);
        return kernels;
    }

    /** Of what can be done with scores a ring has soft caps alone, which cuDNN's kernels never take. */
    private AttentionKernels kernels(Block block, Tensor query, Pass pass) {
        return KernelChoice.attention(
                block.isOwn() ? own : others, LAYOUT, query.dtype(), block.sequences(), scores, pass);
    }

    private AttentionProblem problem(Block block) {
        return (block.isOwn() ? ownProblems : otherProblems).get(LAYOUT, Sequences.Padding.BY_LENGTHS, false);
    }
}
