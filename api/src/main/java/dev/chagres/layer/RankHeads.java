package dev.chagres.layer;

import dev.chagres.model.ModelPlan;
import dev.chagres.model.TensorParallel;

/**
 * The heads of an attention that one of several tensor-parallel ranks computes.
 *
 * <p>Threading: immutable.
 */
final class RankHeads {
    private RankHeads() {}

    /**
     * Returns {@code config} with the heads of the plan's rank alone.
     *
     * @throws IllegalArgumentException when the ranks do not divide the heads, or attention weights are dropped
     */
    static AttentionConfig of(AttentionConfig config, ModelPlan plan) {
        TensorParallel ranks = plan.tensorParallel();
        int heads = Math.toIntExact(ranks.share("heads", plan.name(), config.heads()));
        int keyHeads = Math.toIntExact(ranks.share("keyHeads", plan.name(), config.keyHeads()));
        if (ranks.isSplit() && !config.dropout().isNone()) {
            throw new IllegalArgumentException("dropout: " + plan.name() + " expected none of attention weights where "
                    + config.heads() + " heads are divided among " + ranks.size()
                    + " tensor-parallel ranks, for each rank would drop by the numbers of the first heads, got "
                    + config.dropout() + "; use TransformerLayerConfig.withHiddenDropout");
        }
        return new AttentionConfig(
                heads,
                keyHeads,
                config.headDim(),
                config.mask(),
                config.dropout(),
                config.scale(),
                config.qkNorm(),
                config.order(),
                config.softcap(),
                config.softmaxType());
    }
}
